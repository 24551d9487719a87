"""Benches that drive processes from outside, on a broker, an index store and workers of their own.

stage.py          the processes of a bench, their progress and their use of the machine
nearline.py       rates and start of a worker, compared with the bare network
freshness.py      from publishing an update to the new score in an answer
statistics.py     from a behaviour to the score that its count gives; streamed against imported statistics
scale.py          time, disk and memory of a version by number of items
crash.py          kills under traffic, then a count of every update
crash_traffic.py  the updates of that traffic; bad_records.py: those of broken senders
crash_judge.py    the count at the end
crash_fold.py     the independent count, which shares no code with the shards
faulty_disk.py    single disk calls that fail
soak.py           mixed load for long, and growth with time
"""
