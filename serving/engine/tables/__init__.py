"""One version's rows in an arena: memory, look-up, changes, and the candidates of a request."""
