"""`aif demo`: the whole system on one machine, from an empty directory to ranked answers and figures.

cli.py       the command and its options
program.py   the acts in order: read it first
stage.py     the processes and their directory
acts.py      the measurements, act by act
one_ranking.py  one ranking for people: best items, a price change, a new item
keeper.py    the background process of --keep, its record, its end
progress.py  bars on standard error, the ranking, the figures, what to try next
"""
