"""The ranker's training, after that of the network whose answer it orders: one row per request, its history read once.

sequences.py   requests as the ranker reads them
fit.py         its start and its steps
"""
