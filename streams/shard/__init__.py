"""A shard: one partition of the item topics in one RocksDB directory, from a batch of records to one WriteBatch.

shard.py           one micro-batch, from records to one WriteBatch: read it first
directory.py       the RocksDB directory: identity, versions, the stored outbox, checkpoints
task.py            the serial task that owns a shard: queue, retries, sending the outbox
decode.py          from the bytes of a record to updates and rejections
outbox.py          messages for Kafka, stored in the shard; outbox_sender.py sends them
batch_result.py    what a batch did, for metrics
start.py           where a shard's data comes from when it is opened
snapshot_files.py  snapshots of a shard in the index store
log_ends.py        where the topics of a shard begin and end now
shard_reader.py    a checkpoint of a shard, for builds and seals
cli.py             `aif shards`
"""
