"""The index: its bytes (FORMAT.md), and the decisions about its versions.

- layout.py: rows, stamps, blocks, increments and delta records as bytes; keys.py: index keys of many ids
- manifest.py: what a version consists of; digest.py: its digest; shard_snapshot.py: snapshots of shards
- item_sample.py: inputs of a few items, for comparing two models
- lifecycle.py: the states of a version and the entries that change them: read it first
- control.py: the control log folded; control_entry.py: its entries as bytes; control_fold.py: a fold as bytes
- control_invariants.py: what holds of every state of the control log
- retention.py: what may be removed, and when
"""
