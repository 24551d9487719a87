"""Updates of candidates that changed nothing because the index holds a newer version: what `aif query --trace` tells a publisher.

The files have the stamp of each item at their seal; everything after it is in the topic. At most RECORDS_MAX records of a partition are read.
"""

from collections.abc import Iterable

import numpy as np

from infra.index.control_log import ControlLog
from infra.index.parts import read_manifest
from infra.index.sample import find_stamps
from infra.index.store import open_index_store
from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import read_topic
from infra.settings import ProcessSettings
from schemas.decoding import decode_updates
from schemas.events import ItemFeaturesRecord, ItemFeaturesUpdate
from schemas.ids import Id, decode_id, encode_index_key, partition_of
from schemas.topics import ITEM_FEATURES

RECORDS_MAX = 10_000
LINES_MAX = 10


def describe_superseded(settings: ProcessSettings, candidates: Iterable[Id]) -> list[str]:
    """A line for each of the first candidates whose newest update in the topic is older than what the index holds. Raises Unavailable, Corrupted."""
    store = open_index_store(settings.index.store)
    current = ControlLog(store).refresh().current
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
                    f"the index holds version {held[0]}; publish a higher version, such as the time in ms"
                )
            else:
                newest[update.item_id] = stamp
                lost.pop(update.item_id, None)
    return list(lost.values())[:LINES_MAX]


def stamp_of(stamp: np.ndarray | np.void) -> tuple[int, int, int]:
    """(version, offset, index) of the features in a STAMP element."""
    return int(stamp["features_version"]), int(stamp["features_offset"]), int(stamp["features_index"])
