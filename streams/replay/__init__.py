"""The log applied again, in a directory of its own, to a fixed vector of offsets; the result compared by digest, kept, or adopted as a version.

cli.py            `aif replay`
points.py         from --from and --to to offsets (streams/core/replay_plan.py plans the shards)
replay.py         the replay, its digest and its figures: read it first; forecast.py: how long it would take
replayed_rows.py  its rows kept for `aif index diff`, or put into the index store (adopted_parts.py) and announced as a version
"""
