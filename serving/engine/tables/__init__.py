"""One version's rows in an arena: memory, look-up, changes, and the candidates of a request.

tables.py      rows, and changes by the row-stamp rule: read it first
arena.py       the two arenas, and where each column lies
lookup.py      ids to row numbers
changes.py     row changes as arrays, applied in bounded turns
candidates.py  the ids of a request to row numbers, and the best k
"""
