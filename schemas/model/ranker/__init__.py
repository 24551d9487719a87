"""The ranker: a generative model that orders AIF's answer, and whose long prefix is computed before its candidates are known.

ranker.py  the network, whole and in its three pieces: prefix, extension, candidates
layers.py  its layers, with sums over keys instead of a softmax
spec.py    its sizes, and the part of a history that it reads
"""
