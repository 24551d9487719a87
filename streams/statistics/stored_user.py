"""What user-features says of a user, as a tally stores it: of the features that are needed there.

Here: records to users. Not here: which features are needed, storage (tally.py).
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from infra.kafka.reader import SourceRecord
from schemas.decoding import STATISTICS_OP, decode_user_features
from schemas.errors import RejectedInput
from schemas.events import UserFeaturesRecord
from schemas.ids import IdKind, encode_index_key
from schemas.index.control import Init


class StoredUser(msgspec.Struct, array_like=True):
    """The profile, and the last statistics, which hold over it, with the time as of which they were counted (-1: none)."""

    own: dict[str, Any] = {}
    statistics: dict[str, Any] = {}
    at_ms: int = -1

    @property
    def values(self) -> dict[str, Any]:
        """Its features as servers have them."""
        return {**self.own, **self.statistics}


encode_user = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(StoredUser).decode


def decode_user(raw: bytes | None) -> StoredUser:
    """The inverse of `encode_user`; of nothing a user of whom nothing was said."""
    return StoredUser() if raw is None else _decode(raw)


def decode_user_updates(records: Iterable[SourceRecord], init: Init) -> list[tuple[bytes, UserFeaturesRecord]]:
    """Some records with the index keys of their users. A bad one says nothing; servers write its dead letter."""
    found = []
    for record in records:
        with contextlib.suppress(RejectedInput):
            if not record.skipped:
                update = decode_user_features(record.key, record.value, IdKind(init.id_kind), record.partition, init.user_partitions)
                found.append((encode_index_key(update.user_id), update))
    return found


def fold_user(user: StoredUser, update: UserFeaturesRecord, needed: Mapping[str, Any]) -> StoredUser:
    """The user after a record, of whose features some are `needed`. The latest record wins (A12)."""
    if update.op == STATISTICS_OP:
        return StoredUser(user.own, dict(needed), (update.time_ms or 0) if needed else -1)
    return StoredUser(dict(needed), user.statistics, user.at_ms)
