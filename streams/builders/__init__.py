"""Work that a worker hands to processes of its own: on a checkpoint of a shard, or with a whole network.

jobs.py              what a worker and its builders say to each other: read it first
running_jobs.py      which job runs for which shard, and the checkpoint directories
pool.py              the processes as the worker sees them: jobs in, futures out
template.py          where the processes come from
process.py           the loop inside such a process
full_part.py         every row of a shard, from its checkpoint or taken over from an earlier part; slices.py keeps what a killed build had done
sealer.py            the seal of a shard: a frozen, checkable view
canary_scores.py     a new version and the live one score the same sample
checkpoint_judge.py  a new checkpoint's network is run before anybody wants the version
"""
