"""One version's rows in a slot: memory, look-up, changes, and the candidates of a request."""
