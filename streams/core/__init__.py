"""The rules of the nearline side as pure functions: values in, plans out. No I/O, no clock, no randomness.

item.py                   one item: which update wins and which is superseded, which parts of its row are stale, its stored bytes
ascending.py              values by ascending keys, out of ascending pages
batching.py               records to micro-batches, and what to do about a hole in a partition
shard_state.py            what a shard counts and remembers
version_plans.py          the next actions for versions; canary.py: whether one may go live; misbehaviour.py: whether the live one goes back
replay_plan.py            where a replay begins and ends
"""
