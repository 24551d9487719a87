"""`aif demo`: the whole system on one machine, from an empty directory to ranked answers, and what it measures on the way.

cli.py       the command and its options
program.py   the acts in order: read it first
stage.py     the processes and their directory
acts.py      what is shown, and what it measures
server.py    the server as a client sees it
progress.py  bars on standard error, the table at the end
"""
