"""The quality of the models: the paper's tables on the synthetic world (`aif eval tables`), one model on mapped files (`aif eval data`), and the gain of
following (`aif eval online`).

family/                   the models of the paper's tables, as variants of one network
plan.py                   which models are trained, with which sizes and losses
cells.py                  one model with one seed: trained, measured per user, kept in a file; many of them in several processes
world_truth.py            the world's training set, its held-out users and their measures
tables.py                 the figures made of cells, and how many bits a signature needs
costs.py                  the cost of Table 3, of Algorithm 1, and of training rows that are not grouped
program.py                one run of `aif eval tables`; cli.py: the commands; report.py, pictures.py, data_section.py: its report
mapped_data.py            one run of `aif eval data`; candidates.py: the items that its users are asked about; live_data.py: `--live`
history.py                the worth of a longer history, and its cost (`aif eval history`)
rungs.py                  the cost in quality of each rung of the serving ladder
relay.py                  what the ranker adds to AIF's order (`aif eval relay`)
drift.py                  one run of `aif eval online`, a follower in a world that moves; live_bench.py: the same with processes
"""
