"""A deterministic simulation of the nearline half: the real shell on simulated disks, logs, stores, clocks and a consumer group.

Read it in this order:

    disk.py      a host's disk: directories with the interface of infra/rocks.py, atomic batches, a write-ahead log whose end can be lost
    store.py     the index store in memory: exclusive create, file times
    encoder.py   a model whose rows are hashes of their inputs
    world.py     everything outside the processes: topics, clock, group, chance; and the points at which a process dies or another one goes on
    boundary.py  the few functions of the shell that touch directories and files, replaced by those disks and that store
    worker.py    a worker process: real shards, the real reconciler, real builders' work; simulated consumer and sender
    adoption.py  a replay adopted as a version
    server.py    a server: loads versions, follows deltas, answers
    oracle.py    what must be true: a plain fold of the topics that shares no code with the system
    checks.py    the invariants, during a history and when it has come to rest
    history.py   one seed = one history
    haste.py     what pure functions gave before, and cheaper ways to small documents (quick_json.py) and to few rows (plain_rows.py)
    campaign.py  many of them, on all cores
    plants.py    bugs to be found, one switch each
    __main__.py  `python -m tests.sim --histories N | --seed S [--plant NAME]`

Real code: streams/shard without the task and the sender, streams/versions, infra/index/control_log.py, streams/core, schemas/index. Of streams/builders, the
parts, the seals and the running jobs are real. Models: threads, Faust, the producer, RocksDB, part files, the checkpoint's own checks, the engine's tables.
In three histories of four, rows in memory are a model too, and documents that the shell wrote itself are not read again. test_fakes.py holds the models to
the real things.
"""
