"""Computation allocation in the server: how much work each request gets.

The rule is serving/core/choice.py.

allocator.py   the mode, the price of this moment, the last decisions
decisions.py   a decision carried out: its work, its receipt, its explanation
tables.py      the tables of values and costs, followed from the index store; what decides without one
answers_in_row.py   what the drop rule counts: answers that no behaviour of their user followed
score_cache.py   answers that may be given again
outcomes.py    decisions and their costs, to the topic allocation-outcomes; settings.py: how a server allocates
"""
