"""Call 2: the scores of candidates, in one compiled pass.

joint_pass.py       rows joined with the user, DIN (Eq. 8), and the head, block by block: read it first
tier_counts.py      SimTier (Eq. 9)
version_weights.py  the part that is the same for all users: weights of the head, tier edges
"""
