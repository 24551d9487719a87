"""`aif train --follow`: a trainer that goes on for ever, from the live version's weights and the topics to new checkpoints.

follower.py        the loop: plan a round, learn it, keep it, publish, tell
rounds.py          what a round is, how far the next one goes (pure)
followed_log.py    the five topics, read exactly up to where a round ends
view.py            what is known of items and users, and the join as of each impression
learner.py         score, then learn: network, optimiser, generator
validation.py      progressive validation over a window
health.py          whether what was learnt may be published (pure)
publications.py    checkpoints every so often, through the gate that everybody's go through
status.py          the status line and the metrics
program.py         wiring: settings, the live version, the kept state, signals
"""
