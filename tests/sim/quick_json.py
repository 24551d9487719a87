"""JSON as the shell reads and writes it, without what json makes again at every call: half of the cost of small documents.

Here: `QuickJson`, in the place of the module json in the modules that write one small document after another, and `QuickEncoder`, in the place of one
json.JSONEncoder. Same bytes, same values, same errors (test_fakes.py compares them).
"""

import json
from json.encoder import c_make_encoder, encode_basestring_ascii
from json.scanner import c_make_scanner
from typing import Any

_scan = c_make_scanner(json.JSONDecoder())


class QuickEncoder:
    """`json.JSONEncoder(sort_keys=..., separators=...).encode` of documents without cycles."""

    def __init__(self, sort_keys: bool = True, separators: tuple[str, str] = (",", ":")) -> None:
        between, after_key = separators
        self._parts = c_make_encoder(None, _refuse, encode_basestring_ascii, None, after_key, between, sort_keys, False, True)

    def encode(self, document: dict[str, Any]) -> str:
        """Its text."""
        return "".join(self._parts(document, 0))


def _refuse(value: object) -> object:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class QuickJson:
    """The module json, as far as decoders of the shell use it."""

    JSONEncoder, JSONDecoder = json.JSONEncoder, json.JSONDecoder

    @staticmethod
    def loads(raw: bytes) -> Any:
        """json.loads of a document that stands alone; whatever is not plain is left to json."""
        try:
            value, end = _scan(raw.decode(), 0)
        except (ValueError, StopIteration, RecursionError):
            return json.loads(raw)
        return value if end == len(raw) else json.loads(raw)
