"""Compiled code that the model and the engine share: the lowest room. It needs only NumPy and numba.

compiled.py       decorators, numba's cache
vector_blocks.py  what vector code is built of, in LLVM's form; made of it: float32_code.py, float64_code.py, bit_planes.py
products.py       products of many rows with one matrix: the one tile
hash_table.py     the one hash table
item_rows.py      stored item rows from features
signer.py         signatures of embeddings
"""
