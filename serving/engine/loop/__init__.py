"""The engine's thread, and the versions that are resident in it.

engine.py    the thread: changes, then a batch of work, then answers: read it first
resident.py  one version: its tables, its scorer, its watermark
"""
