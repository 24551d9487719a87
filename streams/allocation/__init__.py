"""Fits what servers allocate computation by, from outcomes.

value_fit.py         values of actions from probes and random actions
drop_fit.py          the drop rule, and a model of invalid requests
calibration_fit.py   cached answers: calibration and kept value by age
gate.py              whether a table's values may decide
"""
