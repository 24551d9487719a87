"""Versions in a server: the control log followed, files loaded into memory, row changes handed to the engine, the flip.

- version_follower.py: the thread that decides what to do next: read it first
- loader.py: the process that loads, and the memory of the two arenas; loader_process.py: what runs in that process
- deltas.py: row changes of a version from index-deltas, and catching up with them
- freshness.py: how old rows are, and statistics
"""
