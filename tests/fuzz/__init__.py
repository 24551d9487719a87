"""Damaged and forged bytes for every reader of bytes: short in the suite, longer as `pytest -m campaign tests/fuzz`.

`forge.py` changes bytes and documents, `readers.py` lists the readers and their samples, `rows.py` takes row changes as far as the compiled kernels.
A forged record has a right checksum and wrong fields. Each input follows from its seed, which a failure names.
"""
