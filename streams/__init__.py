"""The nearline side: topics in, index versions out. Rooms of `aif worker` first, then those of other processes.

    core         rules and plans as pure functions: read it first
    shard        one partition of the item topics: records to one WriteBatch
    builders     child processes: full parts, seals, canaries
    versions     a checkpoint record to a live version, and the removal of old ones
    replay       the log applied again: `aif replay`
    statistics   counters from behaviours and impressions: `aif statistics`
    training     impressions to checkpoints: `aif train`
    allocation   outcomes of requests to tables of costs and values: `aif allocate`

Files of the worker:

    worker.py            wiring, with one Faust agent for each topic
    faust_shell.py       Faust and the agents; faust_consumer.py, fetched_records.py: its consumer, changed
    owned_shards.py      the shards that Kafka has assigned to this worker
    record_feed.py       a batch of an agent to the shards' tasks; records that did not come: read again, or the end of the process
    encoder.py           items to rows, signatures included; encoder_protocol.py: its interface, kernels.py: its compiled code, loaded early
    data_directory.py    the worker's directory, for one process at a time
    settings.py, worker_metrics.py, cli.py
"""
