"""The second stage: the ranker orders AIF's answer, with the keys and values of a user's history computed before the candidates are known."""
