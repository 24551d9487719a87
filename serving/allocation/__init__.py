"""Computation allocation in the server: how much work each request gets.

allocator.py   the mode, the price of this moment, the decisions, those of the last requests to explain them
pick.py        the decision before the answer; prepared.py: a table as it reads one
decisions.py   a decision with its receipt, by the rule in full
tables.py      the tables of values and costs, followed from the index store; what decides without one
answers_in_row.py   what the drop rule counts: answers that no behaviour of their user followed
score_cache.py   answers that may be given again
outcomes.py    decisions and their costs, to the topic allocation-outcomes; settings.py: how a server allocates
"""
