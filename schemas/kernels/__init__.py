"""Compiled code that the model and the engine share: the lowest room.

- compiled.py: decorators, numba's cache: read it first
- vector_blocks.py: building blocks of vector code, in LLVM's form
- float32_code.py, float64_code.py, bit_planes.py: vector code for the engine, for item rows, and for SimTier
- products.py: products of many rows with one matrix: the one tile
- hash_table.py: the one hash table
- item_rows.py: stored item rows from features
- signer.py: signatures of embeddings

It needs only NumPy and numba.
"""
