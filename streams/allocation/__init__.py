"""Fits what servers allocate computation by, from outcomes; `aif allocate`.

join.py         outcomes of requests: allocation-outcomes joined with impressions by request id
cost_fit.py     costs of levels from measured times
value_fit.py    values of actions from probes and random actions
drop_fit.py     the drop rule
gate.py         whether a table's values may decide
program.py      one fit from the topics; cli.py: the commands
"""
