"""A user's history as the topics have it now, in the form of a request: what `aif query --record` sends, so that the answer can be recomputed."""

import contextlib
from typing import Any

from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.kafka.admin import start_offsets
from infra.kafka.reader import read_topic
from infra.settings import ProcessSettings
from schemas.decoding import decode_updates, decode_user_features
from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.events import Behaviour, BehavioursRecord
from schemas.ids import decode_id, encode_wire_id, partition_of
from schemas.index.control import Init
from schemas.limits import BEHAVIOURS_PER_REQUEST_MAX
from schemas.topics import USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile


def find_users(settings: ProcessSettings, count: int) -> list[str]:
    """The first users with a behaviour on the topic, at most `count`, by id. Raises Unavailable (`no_behaviours`) if there is none."""
    init = _read_init(settings)
    bootstrap, prefix, partitions = settings.connection(), settings.kafka.topic_prefix, init.user_partitions
    found: dict[str, None] = {}
    for partition, begin in start_offsets(bootstrap, prefix + USER_BEHAVIOURS).items():
        for record in read_topic(bootstrap, USER_BEHAVIOURS, start={partition: begin}, prefix=prefix):
            decoded = decode_updates(
                BehavioursRecord, Behaviour, record.value, init.id_kind, partition, partitions, lambda one: one.user_id
            )
            found |= {str(behaviour.user_id): None for _, behaviour in decoded.accepted}
            if len(found) >= count:
                return list(found)[:count]
    if not found:
        raise Unavailable(
            "no_behaviours",
            f"{prefix}{USER_BEHAVIOURS} holds no behaviour; publish some (`aif import`, `aif publish behaviours`), or name a user",
        )
    return list(found)


def _read_init(settings: ProcessSettings) -> Init:
    init = ControlLog(open_index_store(settings.index.store)).refresh().init
    if init is None:
        raise Incompatible("no_index", f"{settings.index.store} holds no index; set AIF_INDEX__STORE as it is for the server")
    return init


def read_history(settings: ProcessSettings, user_id: str) -> dict[str, Any]:
    """Return `features` and `behaviours` of a user as fields of a request body; of the behaviours the newest that a request may bring.

    Both topics are read from their beginning, in the user's partition alone. Raises Incompatible (`no_index`), RejectedInput (`bad_id`), Unavailable."""
    init = _read_init(settings)
    bootstrap, prefix, partitions = settings.connection(), settings.kafka.topic_prefix, init.user_partitions
    user = decode_id(user_id, init.id_kind)
    partition = partition_of(user, partitions)
    history = UserHistory()
    begins = {topic: {partition: start_offsets(bootstrap, prefix + topic)[partition]} for topic in (USER_FEATURES, USER_BEHAVIOURS)}
    for record in read_topic(bootstrap, USER_FEATURES, start=begins[USER_FEATURES], prefix=prefix):
        with contextlib.suppress(RejectedInput):  # servers skip it too
            profile = decode_user_features(record.key, record.value, init.id_kind, partition, partitions)
            if profile.user_id == user:
                fold_profile(history, record.offset, profile.features, profile.time_ms)
    for record in read_topic(bootstrap, USER_BEHAVIOURS, start=begins[USER_BEHAVIOURS], prefix=prefix):
        decoded = decode_updates(BehavioursRecord, Behaviour, record.value, init.id_kind, partition, partitions, lambda one: one.user_id)
        own = [BehaviourEvent(b.item_id, b.kind, b.time_ms, b.features) for _, b in decoded.accepted if b.user_id == user]
        fold_behaviours(history, record.offset, own)
    newest = history.behaviours[-BEHAVIOURS_PER_REQUEST_MAX:]
    return {
        "features": dict(history.profile),
        "behaviours": [
            {"item_id": encode_wire_id(b.item_id), "kind": b.kind, "time_ms": b.time_ms, "features": dict(b.features)} for b in newest
        ],
    }
