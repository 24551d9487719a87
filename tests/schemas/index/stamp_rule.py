"""The row-stamp rule and the input hash (FORMAT.md section 3) in plain form, to compare other forms with."""

import hashlib

import numpy as np


def is_newer(incoming: np.ndarray, current: np.ndarray) -> np.ndarray:
    """Whether each incoming row replaces the current one: neither of its components goes back, and one of them advances. Both are STAMP arrays, or elements, of
    one shape; so is the bool result."""

    def compare(*fields: str) -> np.ndarray:
        sign = np.zeros(np.shape(incoming["dead"]), np.int8)
        for name in fields:
            a, b = incoming[name], current[name]
            sign = np.where(sign != 0, sign, (a > b).astype(np.int8) - (a < b).astype(np.int8))
        return sign

    features, embedding = compare("features_version", "features_offset", "features_index"), compare("embedding_offset", "embedding_index")
    return (features >= 0) & (embedding >= 0) & ((features > 0) | (embedding > 0))


def input_hash(features: bytes, embedding: bytes) -> int:
    """The `input_hash` of a stamp from the stored bytes of both components; `embedding` is empty if absent."""
    f, e = (
        int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") if raw is not None else 0
        for raw in (features, embedding or None)
    )
    return (f + 0x9E3779B97F4A7C15 * e) % (1 << 64)
