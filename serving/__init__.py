"""The online side: one server process that answers the two calls from index versions it holds in memory.

    protocols   HTTP and gRPC: bytes to calls, answers to bytes
    calls       call 1 (user half) and call 2 (candidates to top k): whose half, which version, within which deadline
    users       the server's own view of users: their topics folded into a local database
    versions    which version is live: the control log followed, files loaded, deltas handed to the engine
    allocation  how much work a request gets: candidates ranked, cached answer, or a refusal
    relay       the second stage: the best items of call 2, ordered by a ranker
    engine      the tables and the arithmetic: one thread that owns them, and its compiled passes
    core        decisions as pure functions: admission, ladder, routing, forms of tensors
    audit       answers computed again by the reference, from files or beside the engine
    merger      a caller of both calls over several servers

A request goes protocols, calls, engine. Files:

    server.py            wiring of the process
    health.py            whether it can answer; topic_watch.py: whether its topics are still those of the index
    reports.py           reports to the workers; status_view.py: the page `/v1/status`
    engine_kernels.py    compiled code, made or loaded at the start
    time_slices.py       short time slices for the threads that answer
    client.py            the caller's end, `aif.Client`; http_calls.py: its HTTP; query.py: `aif query`
    settings.py, cli.py
"""
