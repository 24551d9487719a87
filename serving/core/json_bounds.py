"""The depth of a JSON text and its numbers of values and keys, found without parsing. So a body is refused before a parser spends memory and time on it.

A parser is one call that keeps the interpreter, and with it every other request: 8 MiB of small values, all of them wrong, took 2.2 s.
Brackets and commas inside strings do not count. The text need not be valid JSON; other errors are left to the parser.
"""

from typing import Any

import numpy as np

from schemas.errors import RejectedInput
from schemas.limits import JSON_DEPTH_MAX, JSON_VALUES_MAX

_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE = ord('"'), ord(","), ord(":"), (ord("["), ord("{")), (ord("]"), ord("}"))


def check_json(text: bytes) -> None:
    """Raises RejectedInput (`json_too_deep`, `json_too_large`)."""
    depth, values = json_size(text, JSON_DEPTH_MAX, JSON_VALUES_MAX)
    if depth > JSON_DEPTH_MAX:
        raise RejectedInput("json_too_deep", f"the body nests {depth} levels deep, expected at most {JSON_DEPTH_MAX}; send a flat request")
    if values > JSON_VALUES_MAX:
        raise RejectedInput("json_too_large", f"the body has about {values} values, expected at most {JSON_VALUES_MAX}; send fewer")


def json_size(text: bytes, enough_depth: int, enough_values: int) -> tuple[int, int]:
    """(greatest nesting depth, number of commas and opening brackets, which no JSON text has fewer of than values after its first).

    Where both are certainly at most `enough_…`, they are upper bounds, which are cheaper to find.
    """
    brackets = text.count(b"[") + text.count(b"{")
    if brackets <= enough_depth and (len(text) <= 2 * enough_values or brackets + text.count(b",") <= enough_values):
        return brackets, min(enough_values, len(text))
    codes = _outside_strings(text, _COMMA, *_OPEN, *_CLOSE)
    opens, closes = ((codes == first) | (codes == second) for first, second in (_OPEN, _CLOSE))
    depth = np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int32)
    return max(0, int(depth.max(initial=0))), int(opens.sum() + (codes == _COMMA).sum())


def check_keys(text: bytes, distinct: int) -> None:
    """Raises RejectedInput (`duplicate_key`) if an object has a key twice: parsers disagree on which of the two values counts.

    `text`: valid JSON; `distinct`: its keys as they were parsed, of all objects, each once for its object (`count_keys`).
    """
    if text.count(b":") <= distinct:
        return
    keys = int((_outside_strings(text, _COLON) == _COLON).sum())
    if keys > distinct:
        raise RejectedInput(
            "duplicate_key", f"the body has {keys} keys, of which {keys - distinct} repeat one of the same object; send each key once"
        )


def count_keys(value: Any) -> int:
    """The keys of all objects in a parsed JSON value."""
    if isinstance(value, dict):
        return len(value) + sum(map(count_keys, value.values()))
    if isinstance(value, list) and not {dict, list}.isdisjoint(map(type, value)):
        return sum(map(count_keys, value))
    return 0


def _outside_strings(text: bytes, *kept: int) -> np.ndarray:
    """The bytes in `kept` that stand outside of strings, and closing quotes, in order: uint8."""
    others = bytes(set(range(256)) - {_QUOTE, *kept})
    codes = np.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, others), np.uint8)
    return codes[np.cumsum(codes == _QUOTE, dtype=np.uint8) & 1 == 0]
