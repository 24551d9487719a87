"""`aif statistics`: numbers of items and users kept current from behaviours and impressions (schemas/statistics.py defines them).

    an event     Kafka -> an agent of Faust -> owner.py -> the serial task of streams/shard/task.py -> tally.py: one WriteBatch
    a number     tally.py, once an interval: counts.py -> outbox -> item-features, op "statistics" -> the shards of the workers
                                                                -> user-features, op "statistics" -> servers

counts.py    counters in memory, and the numbers that they make; pure
events.py    records to changes of counters
tally.py     the counters in RocksDB, with offsets, outbox and the numbers that were sent
side.py      all items, or all users: what the topic says of them, and which numbers are to be sent
stored_user.py  records of user-features to users: what user-features says of a user
older_items.py  items that the log no longer has, from the snapshots of shards
owner.py     the one process of the group that owns all partitions
program.py   wiring
"""
