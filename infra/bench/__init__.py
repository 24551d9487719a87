"""What is measured: every bench's declarations, figures and kept runs, and the benches that drive processes from outside.

declared.py       what a bench says of itself: figures and goals; each bench does so in its own file, in every part
report.py         the figures of one run, as `--json` prints them
kept.py           the runs in docs/benchmarks; document.py writes docs/BENCHMARKS.md from them
freshness.py      from publish to visible
crash.py          kills under traffic; crash_traffic.py: what is published; bad_records.py: what broken senders send; crash_fold.py: how it is
                  counted; faulty_disk.py: single calls that fail
scale.py          what a version costs by number of items
stage.py          a broker, a store and processes for a bench; load.py: an open loop on a server
cli.py            their commands, and `aif bench keep|report`
"""
