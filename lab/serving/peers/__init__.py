"""Other people's servers, for `aif bench rank`: scripts that run in an environment of their own and import nothing of ours but answering.py.

A script gets a folder with arrays and is asked over its pipes.
"""
