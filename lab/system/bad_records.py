"""Records as they come from broken or hostile senders, past every check of the publisher: some are to be dead-lettered, some in part, and some are valid."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.partitioner import murmur2

from lab.demo.stage import SHARDS
from schemas.limits import EMBEDDING_WIDTH_MAX, RECORD_BYTES_MAX, UPDATES_PER_RECORD_MAX
from schemas.topics import ITEM_FEATURES, NEW_ITEMS

_BROKER_TAKES_BYTES = 60 * 1024  # more than a record of ours may have
_HUGE_EVERY = 100  # bad records; one of them has megabytes
_GARBAGE = (
    b"",
    b"\xff\xfe",
    b"[1, 2",
    b"{}",
    b"null",
    b'"updates"',
    b"[" * 300_000,
    b"{}" * 2,
    b"\xef\xbb\xbf{}",
    b'{"schema":1,"updates":{}}',
)
_SCHEMAS = ("9", "0", '"1"', "null", "true", "1.0", "[1]", "1" * 30)
_TEXTS = ('"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\x01"', '"\\q"', '"' + "x" * 1_025 + '"', '"é\U0001f600"')
_LONG = ("1" * 25, "1" * 400, "1" * 5_000, "9" * 5_000 + ".5")
_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e39", "1e-400", "-0", "01", *_LONG)
_VALUES = (*_TEXTS, *_NUMBERS, "{}", "[[1]]", "[true]", "[]", "null", "[null]", f"[{','.join('1' * 1_025)}]")
_DEPTHS = (2, 50, 190, 250, 1_000, 100_000)
_IDS = ('"7"', '"007"', '"-"', '""', "7.0", "true", "null", str(1 << 63), "1" * 5_000, '"' + "1" * 129 + '"', "[1]", '"\\u0661"')
_VERSIONS = ("-1", str(1 << 63), str((1 << 63) - 1), "1.0", '"1"', "null", "true", "NaN", "1e3", "1" * 5_000)


class BadRecord(NamedTuple):
    """The record to send, and its destination."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None


class BadRecords:
    """Draws records one by one, the same ones from the same `chance`."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._drawn = chance, 0
        self._kinds = (self._garbage, self._flipped, self._cut, self._with_value, self._with_head, self._with_field_twice, self._deep)

    def draw(self, items: Sequence[tuple[int, int, Mapping[str, Any]]]) -> BadRecord:
        """A record made of valid updates: (item, event version, features). It mostly goes to the partition of the first one, else to any."""
        self._drawn += 1
        topic, partition = self._chance.choice((ITEM_FEATURES, NEW_ITEMS)), int(murmur2(str(items[0][0]).encode()) & 0x7FFFFFFF) % SHARDS
        if self._chance.random() < 0.05:
            partition = self._chance.randrange(SHARDS)
        if self._drawn % _HUGE_EVERY and self._chance.randrange(len(self._kinds) + 1) == 0:  # a key alone deletes its item, where it is one
            key = self._chance.choice((str(items[0][0]).encode(),) * 3 + (b"", b"x", b"\xff", b"9" * 40))
            return BadRecord(topic, partition, key, None)
        kind = self._chance.choice(self._kinds) if self._drawn % _HUGE_EVERY else self._huge
        return BadRecord(topic, partition, b"", kind([self._update(topic, *item) for item in items]))

    def _update(self, topic: str, item: int, version: int, features: Mapping[str, Any]) -> dict[str, Any]:
        if topic == ITEM_FEATURES:
            op = self._chance.choice(("upsert", "upsert", "delete"))
            return {"op": op, "item_id": item, "version": version, "features": dict(features)}
        width = self._chance.choice((64, 64, 1, 63, 65, EMBEDDING_WIDTH_MAX, EMBEDDING_WIDTH_MAX + 1, 0))
        return {"item_id": item, "embedding": [round(self._chance.uniform(-1, 1), 4) for _ in range(width)]}

    # --- kinds: each takes valid updates and gives the record's value --------------------------------------------------------

    def _garbage(self, _: list[dict[str, Any]]) -> bytes:
        return self._chance.choice(_GARBAGE)

    def _flipped(self, updates: list[dict[str, Any]]) -> bytes:
        raw = bytearray(_encode(updates))
        for _ in range(self._chance.choice((1, 1, 1, 4))):
            raw[self._chance.randrange(len(raw))] ^= 1 << self._chance.randrange(8)
        return bytes(raw)

    def _cut(self, updates: list[dict[str, Any]]) -> bytes:
        raw = _encode(updates)
        return raw[: self._chance.randrange(len(raw))]

    def _with_value(self, updates: list[dict[str, Any]]) -> bytes:
        """One value of one update is another: a number no float holds, an invalid text, an invalid id."""
        update = self._chance.choice(updates)
        if "embedding" in update:
            places = {"item_id": _IDS, "embedding": _VALUES, "0": _VALUES}
        else:
            ops, names = ('"UPSERT"', "null", "1"), ("1",)
            places = {"item_id": _IDS, "version": _VERSIONS, "op": ops, "price": _VALUES, "new name": names, "x": _VALUES}
        place = self._chance.choice(list(places))
        if place == "0":
            update["embedding"] = ["@", *update["embedding"][1:]]
        elif place in ("price", "new name") or (place == "x" and self._chance.random() < 0.5):
            update["features"][place] = "@"
        else:
            update[place] = "@"
        return _encode(updates).replace(b'"@"', self._chance.choice(places[place]).encode())

    def _with_head(self, updates: list[dict[str, Any]]) -> bytes:
        """Another schema number or none, an unknown field, too many updates, no update, UTF-16, a byte that is no UTF-8."""
        raw = _encode(updates)
        forms = (
            raw.replace(b'"schema":1', b'"schema":' + self._chance.choice(_SCHEMAS).encode()),
            raw.replace(b'"schema":1,', b""),
            raw.replace(b'"schema"', b'"schema_number"'),
            raw.replace(b'"schema":1', b'"schema":1,"trace":"a"'),
            _encode(updates[:1] * self._chance.choice((UPDATES_PER_RECORD_MAX, UPDATES_PER_RECORD_MAX + 1))),
            _encode([]),
            json.dumps(updates[0]).encode(),
            raw.decode().encode("utf-16"),
            raw.replace(b'"schema"', b'"sch\xc3ma"'),
            raw.replace(b"}", b"\xed\xa0\x80}", 1),
            raw + b" \n",
            raw + b"x",
        )
        return self._chance.choice(forms)

    def _with_field_twice(self, updates: list[dict[str, Any]]) -> bytes:
        """JSON lets a name stand twice, and the last counts."""
        raw = _encode(updates)
        forms = (
            raw.replace(b'"schema":1', b'"schema":9,"schema":1'),
            raw.replace(b'"schema":1', b'"schema":1,"schema":9'),
            raw.replace(b'"updates":', b'"updates":[],"updates":'),
            raw[:-1] + b',"updates":[]}',
            raw.replace(b'"item_id":', b'"item_id":"x","item_id":'),
            raw.replace(b'"version":', b'"version":-1,"version":'),
            raw.replace(b'"features":{', b'"features":7,"features":{"price":NaN,'),
            raw.replace(b'"embedding":', b'"embedding":[],"embedding":'),
        )
        return self._chance.choice(forms)

    def _deep(self, updates: list[dict[str, Any]]) -> bytes:
        depth, update = self._chance.choice(_DEPTHS), self._chance.choice(updates)
        update[self._chance.choice(("embedding" if "embedding" in update else "features", "item_id"))] = "@"
        opening, closing = self._chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
        return _encode(updates).replace(b'"@"', opening * depth + b"1" + closing * depth)

    def _huge(self, updates: list[dict[str, Any]]) -> bytes:
        """As large as a record may be, and as large as the broker takes."""
        size = RECORD_BYTES_MAX + self._chance.choice((0, 1, _BROKER_TAKES_BYTES))
        return _encode(updates).ljust(size, b" " if self._chance.random() < 0.7 else b"[")


def _encode(updates: list[dict[str, Any]]) -> bytes:
    return json.dumps({"schema": 1, "updates": updates}, separators=(",", ":")).encode()
