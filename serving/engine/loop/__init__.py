"""The engine's thread, and the versions that are resident in it."""
