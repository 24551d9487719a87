"""Fits what servers allocate computation by, from outcomes; `aif allocate`.

join.py         outcomes of requests: allocation-outcomes joined with impressions by request id
cost_fit.py     costs of levels from measured times
value_fit.py    values of actions from probes and random actions
drop_fit.py     the drop rule
calibration_fit.py   cached answers by age: what they keep, and Platt's scaling of their scores
gate.py         whether a table's values may decide
program.py      one fit from the topics; cli.py: the commands
"""
