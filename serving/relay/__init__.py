"""The second stage: the ranker orders AIF's answer, with the keys and values of a user's history computed before the candidates are known.

relay.py       signals and rankings, and the threads that compute them
final_work.py  inputs and results of a final ranking
window.py      which behaviours are read, and whether a kept prefix is a part of them
kv_pool.py     prefixes in pages of a bounded memory, and copies of them in host memory
backend.py     the only door to torch
settings.py    the section `relay`
"""
