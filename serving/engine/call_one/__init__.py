"""Call 1: a user's state from a profile and a history."""
