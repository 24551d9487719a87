"""`aif eval allocation`: what computation allocation is worth, judged by true values that did not choose it.

library.py       requests whose true value of every action is known; what a server would predict and observe of them
budgets.py       value at equal cost and cost at equal value, by share of the full cost
day.py           traffic of a day, and the controls that set the price over it; plan.py: the price from a forecast
drops.py         requests that are dropped: rule, model, at random
cached.py        cached answers: their value and calibration by age
program.py       seeds, intervals, figures
"""
