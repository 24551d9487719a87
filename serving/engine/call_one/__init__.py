"""Call 1: a user's state from a profile and a history.

call_one.py      the steps, from scratch or from an earlier state: read it first
history.py       the join with rows, and one compiled pass: Eq. 1 and the sums over the history
attention.py     Eq. 2 and 3, and the bridges of Algorithm 1
user_state.py    what call 2 reads, and its bytes
user_weights.py  weights of the user half, and encoded features, in the forms that these passes read
"""
