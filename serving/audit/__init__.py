"""Answers computed again by the reference network: recorded ones from files and the log, and a share of all beside the engine."""
