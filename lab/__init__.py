"""Measuring and evaluation, on top of all other rooms: they never import it.

cli.py        the commands: `aif demo`, `aif bench`, `aif eval`
benches.toml  the figures and goals of every command that measures
catalogues/   the synthetic world, and files of others with users to measure on
load.py       the open loop: requests at a constant rate; plain_client.py: one request after the other
background.py loads in threads of their own while a block runs; supervisor.py: starts a child again when it ends
figures/      runs that are kept in docs/benchmarks, and docs/BENCHMARKS.md made of them
system/       benches that drive processes from outside: freshness, crashes, sizes, rates of a worker
serving/      the engine and the server, compared with floors and peers
evaluation/   the paper's tables, a model on other data, the gain of following
demo/         the whole system on one machine, from an empty directory to ranked answers
"""
