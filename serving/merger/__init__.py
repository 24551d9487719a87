"""A caller of both calls over several servers: merger.py; trace.py: one request with its timeline."""
