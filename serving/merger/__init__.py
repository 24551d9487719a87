"""A caller of both calls over several servers: merger.py; retrieval.py: a stand-in for retrieval; trace.py: one request with its timeline."""
