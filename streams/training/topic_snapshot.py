"""A snapshot of the topics for training: a Parquet file per topic, and a manifest with offsets and digests. The same offsets give the same bytes.

    snapshot.json              format, identity of the index, and of every topic: first and end offsets, records, sha256 of its file; of a topic of which
                               retention had removed records, the time from which it is complete
    <topic>.parquet            partition, offset, timestamp_ms, key, value: the records as they are in the log, by partition and offset

Here: writing it in bounded memory, and reading it as `TopicEvents` reads the topics. Not here: decoding (event_decoder.py); it refuses the same records in
log and file, so both give the same batches. Of the compacted topic only the last record of each key is written, so that the file does not depend on how
far the broker has compacted.
The bytes depend on the log alone: they contain no time of writing and no machine name, and row groups are cut by records and bytes.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra.files import fsync, fsync_tree, naming, sha256_of_file, staging_folder
from infra.kafka.reader import SourceRecord, read_topic
from infra.kafka.removed_records import RemovedRecords, complete_from
from schemas.errors import Corrupted, Misconfigured
from schemas.ids import IdKind
from schemas.topics import TOPICS
from streams.training.event_decoder import TRAINING_TOPICS, EventDecoder, Offsets
from streams.training.impressions import Events
from streams.training.topic_events import LogRange, TopicEvents, partitions_of

FORMAT = 1
MANIFEST = "snapshot.json"
SCHEMA = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())]
)
_GROUP_RECORDS, _GROUP_BYTES = 8_192, 32 << 20
_LOOKED_AT = 64  # records of each topic of which ids are looked at
_COMPACTED = frozenset(topic.name for topic in TOPICS if topic.compacted)


def write_snapshot(directory: Path, log: TopicEvents, wanted: LogRange, progress: Callable[[str, int], None] = lambda *_: None) -> None:
    """Writes the snapshot, completely or not at all. Raises Misconfigured (`snapshot_exists`, `id_kind_differs`), Incompatible (`offset_gone`), OSError."""
    if directory.exists():
        raise Misconfigured("snapshot_exists", f"{directory} is there already; a snapshot never changes: name another folder")
    with naming(directory), staging_folder(directory, "snapshot") as staged:
        topics = {t: _write_topic(staged / f"{t}.parquet", log, t, wanted, partial(progress, t)) for t in TRAINING_TOPICS}
        (staged / MANIFEST).write_text(json.dumps({"format": FORMAT, **log.identity, "topics": topics}, sort_keys=True, indent=1) + "\n")
        fsync_tree(staged)
        staged.replace(directory)
        fsync(directory.parent)


def _write_topic(path: Path, log: TopicEvents, topic: str, wanted: LogRange, progress: Callable[[int], None]) -> dict[str, Any]:
    written, oldest_ms, begins = 0, dict[int, int](), partitions_of(wanted.begins, topic)
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False) as writer:
        for group in _groups(_records(log, topic, wanted)):
            if not written:
                log.decoder.check_ids(topic, group[:_LOOKED_AT])
            columns = {name: [getattr(record, name) for record in group] for name in SCHEMA.names}
            writer.write_table(pa.table(columns, SCHEMA), row_group_size=_GROUP_RECORDS)
            written += len(group)
            oldest_ms = {record.partition: record.timestamp_ms for record in reversed(group)} | oldest_ms
            progress(written)
    told: dict[str, Any] = {"begin": dict(wanted.begins[topic]), "end": dict(wanted.ends[topic]), "records": written}
    if any(begins.values()):
        told["complete_from_ms"] = complete_from(begins, oldest_ms)
    return {**told, "sha256": sha256_of_file(path)}


def _records(log: TopicEvents, topic: str, wanted: LogRange) -> Iterator[SourceRecord]:
    """One partition after the other, so that memory does not grow with the log."""
    begins, ends = partitions_of(wanted.begins, topic), partitions_of(wanted.ends, topic)
    for p in sorted(ends):

        def read(p: int = p) -> Iterator[SourceRecord]:
            return read_topic(log.bootstrap, topic, start={p: begins[p]}, end={p: ends[p]}, prefix=log.prefix)

        last = {record.key: record.offset for record in read()} if topic in _COMPACTED else None
        yield from (record for record in read() if last is None or last[record.key] == record.offset)


def _groups(records: Iterator[SourceRecord]) -> Iterator[list[SourceRecord]]:
    """Cuts records into row groups; where one ends depends only on the records."""
    group: list[SourceRecord] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record.value or b"")
        if len(group) == _GROUP_RECORDS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


class SnapshotEvents:
    """Reads a snapshot as `TopicEvents` reads the topics. Raises Corrupted (`bad_snapshot`) for anything that was not written like this."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self._manifest = json.loads((directory / MANIFEST).read_text())
            if self._manifest["format"] != FORMAT:
                raise ValueError(f"format {self._manifest['format']}, expected {FORMAT}")
            kind = IdKind(self._manifest["id_kind"])
            self.decoder = EventDecoder(self._manifest["shards"], self._manifest["user_partitions"], kind)
            self.range = LogRange(*({t: self._manifest["topics"][t][side] for t in TRAINING_TOPICS} for side in ("begin", "end")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Corrupted("bad_snapshot", f"{directory} is not a snapshot: {error!r}; `aif export` writes one") from error

    @property
    def digest(self) -> str:
        """sha256 of the manifest, which has those of all files."""
        return hashlib.sha256((self._directory / MANIFEST).read_bytes()).hexdigest()

    def removed(self) -> list[RemovedRecords]:
        """What retention had removed from the topics before; whole topics are left out."""
        counts = {topic: sum(begins.values()) for topic, begins in self.range.begins.items()}
        return [RemovedRecords(t, n, self._manifest["topics"][t].get("complete_from_ms")) for t, n in counts.items() if n]

    def wait_for_impressions(self, records: int) -> None:
        """A snapshot does not grow: nothing to wait for."""

    def ends(self) -> Offsets:
        """Where each topic ends in it."""
        return self.range.ends

    def read(self, until: Offsets) -> Events:
        """All five topics, up to given ends."""
        return self.decoder.decode_all({t: self._read(t, partitions_of(until, t)) for t in TRAINING_TOPICS})

    def _read(self, topic: str, ends: dict[int, int]) -> Iterator[SourceRecord]:
        path = self._directory / f"{topic}.parquet"
        if not path.exists() or sha256_of_file(path) != self._manifest["topics"][topic]["sha256"]:
            raise Corrupted("bad_snapshot", f"{path} is missing or was changed since; write the snapshot again")
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_GROUP_RECORDS):
                columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value"))
                for partition, offset, key, value in zip(*columns, strict=True):
                    if offset < ends.get(partition, 0):
                        yield SourceRecord(topic, partition, offset, key, value)
