"""The topics as they are now: a user's history for `aif query --record`, and updates without an effect for `aif query --trace`."""

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from infra.clock import SystemClock
from infra.index.control_log import ControlLog, read_state
from infra.index.parts import read_manifest
from infra.index.sample import find_stamps
from infra.index.store import find_index_store
from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import read_topic
from infra.settings import ProcessSettings
from schemas.decoding import STATISTICS_OP, decode_updates, decode_user_features
from schemas.errors import Incompatible, RejectedInput, Unavailable
from schemas.events import Behaviour, BehavioursRecord, ItemFeaturesRecord, ItemFeaturesUpdate
from schemas.ids import Id, decode_id, encode_index_key, encode_wire_id, partition_of
from schemas.index.control import Init
from schemas.limits import BEHAVIOURS_PER_REQUEST_MAX
from schemas.topics import ITEM_FEATURES, USER_BEHAVIOURS, USER_FEATURES
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile, fold_statistics

RECORDS_MAX = 10_000
LINES_MAX = 10


def find_users(settings: ProcessSettings, count: int) -> list[str]:
    """The first users with a behaviour on the topic, at most `count`, by id. Raises Unavailable (`no_behaviours`) on an empty topic."""
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
    init = ControlLog(find_index_store(settings.index.store)).refresh().init
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
            if profile.user_id == user and profile.op == STATISTICS_OP:
                fold_statistics(history, record.offset, profile.features)
            elif profile.user_id == user:
                fold_profile(history, record.offset, profile.features, profile.time_ms)
    for record in read_topic(bootstrap, USER_BEHAVIOURS, start=begins[USER_BEHAVIOURS], prefix=prefix):
        decoded = decode_updates(BehavioursRecord, Behaviour, record.value, init.id_kind, partition, partitions, lambda one: one.user_id)
        own = [BehaviourEvent(b.item_id, b.kind, b.time_ms, b.features) for _, b in decoded.accepted if b.user_id == user]
        fold_behaviours(history, record.offset, own)
    newest = history.behaviours[-BEHAVIOURS_PER_REQUEST_MAX:]
    return {
        "features": {**history.profile, **history.statistics},
        "behaviours": [
            {"item_id": encode_wire_id(b.item_id), "kind": b.kind, "time_ms": b.time_ms, "features": dict(b.features)} for b in newest
        ],
    }


def describe_superseded(settings: ProcessSettings, candidates: Iterable[Id]) -> list[str]:
    """A line for each of the first candidates whose newest update in the topic is older than the index's: such an update changed nothing.

    The files have the row stamp of each item at their seal; everything after it is in the topic. At most RECORDS_MAX records of a partition are read.
    Raises Unavailable, Corrupted.
    """
    store = find_index_store(settings.index.store, look=False)
    current = read_state(store).current
    if current is None:
        return []
    manifest = read_manifest(store, current)
    kind, shards = manifest.layout.id_kind, len(manifest.seals)
    ids = {decode_id(one, kind) for one in candidates}
    stamps = find_stamps(store, manifest, [encode_index_key(one) for one in ids])
    newest = {one: stamp_of(stamps[key]) for one in ids if (key := encode_index_key(one)) in stamps}
    bootstrap, topic = settings.connection(), settings.kafka.topic_prefix + ITEM_FEATURES
    begins, ends = start_offsets(bootstrap, topic), end_offsets(bootstrap, topic)
    used = {partition_of(one, shards) for one in ids}
    start = {p: max(begins[p], ends[p] - RECORDS_MAX) for p in used}
    lost: dict[Id, str] = {}
    for record in read_topic(bootstrap, ITEM_FEATURES, start=start, prefix=settings.kafka.topic_prefix):
        decoded = decode_updates(
            ItemFeaturesRecord, ItemFeaturesUpdate, record.value, kind, record.partition, shards, lambda update: update.item_id
        )
        for index, update in decoded.accepted:
            if update.item_id not in ids:
                continue
            stamp = (update.version, record.offset, index)
            held = newest.get(update.item_id, stamp)
            if stamp < held:
                lost[update.item_id] = (
                    f"item {update.item_id}: its update with version {update.version} (partition {record.partition}, offset {record.offset}) was superseded, "
                    f"the index holds version {held[0]}; {advise_version(held[0], SystemClock().now_ms())}"
                )
            else:
                newest[update.item_id] = stamp
                lost.pop(update.item_id, None)
    return list(lost.values())[:LINES_MAX]


def advise_version(held: int, now_ms: int) -> str:
    """Which event version the next update of an item needs. Where the stored one is above the time in ms, that time is superseded too."""
    if held < now_ms:
        return "publish a higher version, such as the time in ms"
    return "that is above the time in ms, so publish each later update of it with a version above that"


def stamp_of(stamp: np.ndarray | np.void) -> tuple[int, int, int]:
    """(version, offset, index) of the features in a STAMP element."""
    return int(stamp["features_version"]), int(stamp["features_offset"]), int(stamp["features_index"])
