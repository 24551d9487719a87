"""Which version is live: the control log followed, parts loaded in a process of their own, delta records handed to the engine."""
