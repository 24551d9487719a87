"""Measuring and evaluation, on top of all other rooms: they never import it.

cli.py        the commands: `aif demo`, `aif bench`, `aif eval`
figures/      runs that are kept in docs/benchmarks, and docs/BENCHMARKS.md made of them
load.py       the open loop: requests at a constant rate
system/       benches that drive processes from outside: freshness, crashes, sizes
nearline/     builds and increments of `streams` beside their floors
serving/      the engine and the server beside peers and floors
evaluation/   the paper's tables, a model on other data, the gain of following
demo/         the whole system on one machine, from an empty directory to ranked answers
"""
