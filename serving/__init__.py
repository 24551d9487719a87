"""The online side: one server process that answers the two calls from index versions it holds in memory.

    protocols   HTTP and gRPC: bytes to calls, answers to bytes
    calls       call 1 (user half) and call 2 (candidates to top k): whose half, which version, within which deadline
    users       the server's own view of users: their topics folded into a local database
    versions    which version is live: the control log followed, files loaded, deltas handed to the engine
    engine      the tables and the arithmetic: one thread that owns them, and its compiled passes
    core        decisions as pure functions: admission, ladder, routing, forms of tensors
    audit       answers computed again by the reference, from files or beside the engine
    merger      a caller of both calls over several servers

A request goes protocols, calls, engine. server.py wires the rooms together; reports.py and status_view.py describe the process
to others.
"""
