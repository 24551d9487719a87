"""Answers computed again by the reference network. The judges share `schemas` with the engine, and no code of serving/engine.

- parity.py: recorded answers, from the files of their version and the log; version_rows.py: its rows at a watermark
- parity_sampler.py: a share of all answers, in the server; reference_answer.py: call 2 computed slowly
- recorded_answers.py: answers and their histories, to a file and from it
- topic_history.py: a user's history as the topics have it, and updates that changed nothing
"""
