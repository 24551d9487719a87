"""What every process needs from outside, behind small interfaces. Rooms:

    kafka     publishers, readers, topics, dead letters
    broker    the local Kafka broker
    index     the index store, the control log, parts of versions
    data      files of others, as events
    tools     `aif doctor`, `aif status`, the generated reference

Files:

    main.py, cli.py, command.py              the program `aif`; examples.py: an example for each command, extras.py: optional dependencies
    settings.py, logs.py, metrics.py         one each for all processes; figures.py, progress.py: output of commands
    rocks.py                                 RocksDB; rocks_checks.py, rocks_errors.py, rocks_scan.py, sst_directory.py: its parts
    files.py, folders.py, scratch.py         files that are complete or absent; folders of a user and of a process; disk_faults.py: full disks
    processes.py, fork_server.py             child processes; heartbeat.py: their sign of life
    guarded_thread.py                        threads; garbage.py: Python's collector without pauses
    clock.py, closeable.py, failpoints.py    time, ends of objects and crashes of tests as values
    compiled_once.py                         one process compiles, the others load
"""
