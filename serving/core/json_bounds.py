"""How deeply a JSON text nests and how many values it has, found without parsing it: a body is refused before a parser takes memory and time for it.

A parser is one call that keeps the interpreter, and with it every other request: 8 MiB of small values, all of them wrong, took 2.2 s.
Brackets and commas inside strings do not count. The text need not be valid JSON; other errors are left to the parser.
"""

import numpy as np

from schemas.errors import RejectedInput
from schemas.limits import JSON_DEPTH_MAX, JSON_VALUES_MAX

_QUOTE, _COMMA, _OPEN, _CLOSE = ord('"'), ord(","), (ord("["), ord("{")), (ord("]"), ord("}"))
_OTHER = bytes(code for code in range(256) if code not in (_QUOTE, _COMMA, *_OPEN, *_CLOSE))


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
    codes = np.frombuffer(text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER), np.uint8)
    codes = codes[np.cumsum(codes == _QUOTE, dtype=np.uint8) & 1 == 0]  # what stands outside of strings, and closing quotes
    opens, closes = ((codes == first) | (codes == second) for first, second in (_OPEN, _CLOSE))
    depth = np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int32)
    return max(0, int(depth.max(initial=0))), int(opens.sum() + (codes == _COMMA).sum())
