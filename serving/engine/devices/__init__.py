"""Which scorer a device has, and the threads that help.

scorer.py       the interface of a scorer, its choice, the fallback to the CPU: read it first
cpu.py          the CPU: the reference for other devices
cuda.py         a GPU; tier_kernel.py: its SimTier
workers.py      helper threads
"""
