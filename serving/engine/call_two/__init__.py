"""Call 2: the scores of candidates, in one compiled pass."""
