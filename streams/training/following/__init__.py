"""Online learning (`aif train --follow`): a trainer that starts from the live version, learns the impressions topic as it grows, and publishes.

follower.py          the loop: plan a round, write the state, learn the round, publish, report
followed_log.py      the five topics, read exactly up to the end of a round, and how far the next one goes
view.py              items and users as the log has them, and the join of impressions as of their times
learner.py           scores each batch, then learns it: network, optimiser, generator; progressive validation over the newest requests
health.py            whether what was learnt may be published (pure)
publications.py      a checkpoint every interval, and what becomes of it
status.py            the status line and the metrics
follower_program.py  the process: settings, the live version, the stored state, signals
"""
