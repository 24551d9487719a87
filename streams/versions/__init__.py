"""The life of a version: from its announced checkpoint to `want`, live, frozen and removed.

version_side.py       the wiring of all this for the worker
checkpoints.py        a record of model-checkpoints to `want` or `reject`; checkpoint_files.py reads the file that it names
reconcile.py          one step: read the control log, plan (streams/core/version_plans.py), perform; read it first
shard_versions.py     its part for one shard: start, build, seal, stop
readable_encoders.py  encoders of versions, and versions whose checkpoint is lost
attempts.py           how a step tries things, and its report
publication.py        from the seals of all shards to a manifest and its `publish` entry
promotion.py          what goes live by itself: a wish, or a version that passed its canary; automatic rollbacks, by server_reports.py
keepers.py            snapshots of shards when they are due; versions that are dropped, files that are removed
version_messages.py   dead letters of checkpoint records, and index-events
"""
