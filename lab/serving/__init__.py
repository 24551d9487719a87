"""Benches of the engine and the server.

world.py       an engine with a synthetic version in memory, and how calls are timed
rank.py        `aif bench rank`: the engine; protocols.py, client.py: its ports; peer_runs.py, peers/: Triton, Qdrant, Redis
device.py      `aif bench device`: the engine with a CUDA device
server.py      the ports over a bench's engine, in this process or in one of its own
overload.py    `aif bench overload`: ten times the load that a server carries
affinity.py    `aif bench affinity`: several servers, one of them killed
allocation.py  `aif bench allocation`: through a spike with fewer candidates each
relay.py       `aif bench relay`: a ranker's prefix computed before its candidates
switch.py      `aif bench switch`: latency and answers while versions flip; versions.py: writes the versions
table1.py      the paper's Table 1: four ways of scheduling
table4.py      the paper's Table 4; table4_rows.py: its models; table4_pass.py: their compiled pass;
               sub_sequences.py: the store of SIM
child.py       a child process that is asked over pipes
"""
