"""Changes bytes and JSON documents, the same way for the same seed. A document is changed in its values and names, bytes anywhere."""

import copy
import json
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 255, 1 << 31, 1 << 47, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**40, 0.5, -0.0, 1e300, -3e38, float("nan"), float("inf"),
    "", "x", "-1", "07", "../x", "/etc/passwd", "a\0b", "\ud800", "é" * 70, "x" * 2_000, [], [[]], [None], [0] * 300, {}, {"": {}}, {"a": [1]},
)  # fmt: skip


def damage(chance: random.Random, raw: bytes) -> bytes:
    """One to three cuts, flips, insertions or repetitions."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at, size = chance.randrange(len(raw) + 1), chance.choice((1, 1, 2, 4, 8, 64))
        piece = chance.choice((b"", b"\0" * size, b"\xff" * size, chance.randbytes(size), raw[at : at + size] * 2))
        raw = chance.choice((raw[:at] + piece + raw[at + size :], raw[:at] + piece + raw[at:], raw[:at]))
    return raw


def change(chance: random.Random, document: Any) -> Any:
    """A copy with one to three values or names changed, dropped, doubled or moved."""
    document = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        owners = [one for one in _walk(document) if isinstance(one, dict | list) and one]
        if not owners:
            return chance.choice(ODD)
        owner = chance.choice(owners)
        place = chance.choice(list(owner)) if isinstance(owner, dict) else chance.randrange(len(owner))
        step = chance.random()
        if step < 0.6:
            owner[place] = copy.deepcopy(chance.choice(ODD))
        elif step < 0.7:
            del owner[place]
        elif step < 0.8 and isinstance(owner, dict):
            owner[chance.choice(("", "format", "kind", "x", str(place) + "_"))] = owner[place]
        elif step < 0.9:
            owner[place] = copy.deepcopy(chance.choice(list(_walk(document))))
        else:
            owner[place] = [owner[place]] * chance.choice((1, 2, 40))
    return document


def _walk(document: Any) -> list[Any]:
    found = [document]
    for one in found:
        found += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if len(found) > 2_000:
            break
    return found


def encode(document: Any) -> bytes:
    """Its JSON as a careless or hostile sender writes it: NaN and half characters included."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
