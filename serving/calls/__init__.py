"""The two calls of a request: whose user half, on which version, within which deadline; the states that call 1 leaves for call 2."""
