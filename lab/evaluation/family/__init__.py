"""The models of the paper's Tables 2 and 3 and Figure 6, as variants of one network.

variant.py                the variants, by their parts: read it first
network.py                the network of a variant; head.py: its head, with the layers of COLD
codes.py                  the codes for similarity: signatures and embeddings as float vectors; SimTier from clusters
"""
