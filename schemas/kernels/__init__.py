"""Compiled code that the model and the engine share: the lowest room, which needs only NumPy and numba.

compiled.py       decorators, numba's cache
vector_blocks.py  what vector code is built of, in LLVM's form; made of it: float32_code.py, float64_code.py, bit_planes.py
products.py       products of rows with a matrix
signer.py         signatures of embeddings
"""
