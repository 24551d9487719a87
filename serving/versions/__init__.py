"""Versions in a server: the control log followed, files loaded into memory, row changes handed to the engine, the flip.

version_follower.py    the thread that decides what to do next: read it first
loader.py              the process that loads, and the memory of the two slots; index_reader.py: what runs in that process
deltas.py              row changes of a version from index-deltas; catch_up.py: a version that is behind
end_watch.py           the ends of the source topics; statistics_watch.py: how old the statistics of items are
"""
