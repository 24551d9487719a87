"""The count by which the crash bench judges: a plain fold of a topic that says of every update whether it is applied, superseded or a dead letter.

Shares no code with a shard: what both judge differently is a fault of one of them.
"""

import json
import math
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from aiokafka.partitioner import murmur2

from infra.kafka.reader import SourceRecord
from lab.demo.stage import SHARDS
from schemas.topics import ITEM_FEATURES

Counts = Counter[str]  # consumed, applied, superseded, dead_lettered
DeadLetter = tuple[str, int, int, int]  # topic, partition, offset, index in the record
Order = tuple[int, ...]

_RECORD_BYTES, _UPDATES, _FEATURES, _NUMBERS, _TEXT_CHARS = 4 << 20, 256, 256, 1_024, 1_024
_DIGITS, _DEPTH = 4_300, 200  # of one number; of lists and objects around a value. Beyond, a record does not read
_INT64 = range(-(1 << 63), 1 << 63)
_TEXTS, _EMPTY = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL), re.compile(r"\[\s*\]|\{\s*\}")
_ESCAPES = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_NAME, _WHOLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}"), re.compile(r"0|-?[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class Judged:
    """What must have become of every update of a topic: how often by partition, and which ones are dead letters."""

    counts: dict[int, Counts]
    dead_letters: set[DeadLetter]


def count_topic(topic: str, records: Iterable[SourceRecord]) -> Judged:
    """A fold over plain dictionaries, the records of a partition in offset order."""
    counts: dict[int, Counts] = {shard: Counter() for shard in range(SHARDS)}
    dead_letters = set[DeadLetter]()
    newest: dict[int, Order] = {}
    for record in records:
        for index, judged in enumerate(_judge(topic, record)):
            count = counts[record.partition]
            count["consumed"] += 1
            if judged is None:
                count["dead_lettered"] += 1
                dead_letters.add((topic, record.partition, record.offset, index))
                continue
            item, version = judged
            before = newest.get(item, (-1,))
            order = (max(before[0], 0) if version is None else version, record.offset, index)
            count["applied" if order > before else "superseded"] += 1
            newest[item] = max(order, before)
    return Judged(counts, dead_letters)


def _judge(topic: str, record: SourceRecord) -> list[tuple[int, int | None] | None]:
    """(item, version) of every update, None for one that is rejected; a record that does not read is one rejected update. Embeddings have version 0, a record
    with a key alone deletes at the version that is there (None)."""
    if topic == ITEM_FEATURES and record.value is None and record.key is not None:
        item = _item((record.key or b"").decode(errors="replace"), record.partition)
        return [None if item is None else (item, None)]
    judge = _judge_features if topic == ITEM_FEATURES else _judge_embedding
    return [judge(update, record.partition) for update in _updates(record.value or b"")]


def _updates(value: bytes) -> list[Any]:
    try:
        decoded = _read(value)
        updates = decoded["updates"]
        if decoded.keys() - {"schema"} != {"updates"} or not _is_whole(decoded.get("schema", 1), range(1, 2)):
            return [None]
        return updates if isinstance(updates, list) and 1 <= len(updates) <= _UPDATES else [None]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [None]


def _judge_features(update: Any, partition: int) -> tuple[int, int] | None:
    if not isinstance(update, dict) or not {"item_id", "version"} <= update.keys() <= {"op", "item_id", "version", "features"}:
        return None
    item, version, features = _item(update["item_id"], partition), update["version"], update.get("features", {})
    good = update.get("op", "upsert") in ("upsert", "delete") and _is_whole(version, range(1 << 63)) and _are_features(features)
    return (item, version) if good and item is not None else None


def _judge_embedding(update: Any, partition: int) -> tuple[int, int] | None:
    if not isinstance(update, dict) or update.keys() != {"item_id", "embedding"}:
        return None
    item, values = _item(update["item_id"], partition), update["embedding"]
    good = isinstance(values, list) and 1 <= len(values) <= _NUMBERS and all(map(_is_float32, values))
    return (item, 0) if good and item is not None else None


# --- values ----------------------------------------------------------------------------------------------------------------


def _are_features(features: Any) -> bool:
    return (
        isinstance(features, dict)
        and len(features) <= _FEATURES
        and all(_NAME.fullmatch(name) is not None and (value is None or _is_feature(value)) for name, value in features.items())
    )


def _is_feature(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _NUMBERS and all(map(_is_number_or_text, value))
    return isinstance(value, bool) or _is_number_or_text(value)


def _is_number_or_text(value: Any) -> bool:
    return len(value) <= _TEXT_CHARS if isinstance(value, str) else _is_number(value)


def _is_number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _is_float32(value: Any) -> bool:
    try:
        return _is_number(value) and len(struct.pack("<f", value)) == 4
    except OverflowError:
        return False


def _is_whole(value: Any, bounds: range) -> bool:
    return type(value) is int and value in bounds


def _item(given: Any, partition: int) -> int | None:
    """The id, a number or its digits in quotes, if its hash is this partition."""
    if isinstance(given, str) and len(given) <= 20 and _WHOLE.fullmatch(given):
        given = int(given)
    if not _is_whole(given, _INT64) or (murmur2(str(given).encode()) & 0x7FFFFFFF) % SHARDS != partition:
        return None
    return int(given)


# --- JSON ------------------------------------------------------------------------------------------------------------------


def _read(value: bytes) -> Mapping[str, Any]:
    """JSON in UTF-8, without what other readers refuse: endless numbers, deep nesting, halves of a surrogate pair. Raises ValueError."""
    if len(value) > _RECORD_BYTES:
        raise ValueError("too large")
    text = value.decode()
    brackets = re.findall(r"[][{}]", _EMPTY.sub("0", _TEXTS.sub("0", text)))  # an empty list is a value, nothing lies in it
    if max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0) > _DEPTH:
        raise ValueError("too deep")
    _refuse_half_pairs(text)
    decoded: Mapping[str, Any] = json.loads(text, parse_float=_float)
    return decoded


def _float(digits: str) -> float:
    if len(digits) > _DIGITS:
        raise ValueError("too long")
    return float(digits)


def _refuse_half_pairs(text: str) -> None:
    low_expected_at = None
    for escape in _ESCAPES.finditer(text):
        code = int(escape[1] or "0", 16)
        is_low = 0xDC00 <= code < 0xE000
        if is_low != (low_expected_at == escape.start()):
            raise ValueError("half a pair")
        low_expected_at = escape.end() if 0xD800 <= code < 0xDC00 else None
    if low_expected_at is not None:
        raise ValueError("half a pair")
