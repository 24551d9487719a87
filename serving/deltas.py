"""Follows index-deltas for one resident version, from that version's own positions, and hands its changes to the engine.

Here: one thread per resident version (two at most). Not here: the row-order rule (engine/tables.py), when a version may be flipped to (versions.py).
Decoding happens in this thread; the engine gets arrays in portions of at most DELTA_ROWS_PER_APPLY_MAX rows. A record's position, watermark and
time are handed over with its last portion, so the engine never claims more than it has applied.
A record of version -1 carries a watermark for every version. Invariant: a position that the log no longer holds is a named refusal
(`delta_position_gone`), never a silent jump.

Source: protocol C2, FORMAT.md section 8.
"""

import threading
from collections.abc import Iterator, Mapping

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import SourceRecord, TopicFollower
from infra.settings import KafkaSettings
from schemas.errors import AifError, Incompatible
from schemas.index.layout import WATERMARK_VERSION, DeltaHeader, RowLayout, decode_delta
from schemas.limits import DELTA_ROWS_PER_APPLY_MAX
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS
from serving.engine.changes import Changes, cut_changes, decode_changes
from serving.engine.loop import Engine, Portion

POLL_S = 0.1
RECORDS_MAX = 64


def check_positions(kafka: KafkaSettings, positions: Mapping[int, int]) -> dict[int, int]:
    """End offset of every partition now. Raises Incompatible (`delta_position_gone`) unless the log holds every record from `positions` on."""
    topic = kafka.topic_prefix + INDEX_DELTAS
    starts, ends = start_offsets(kafka.bootstrap_servers, topic), end_offsets(kafka.bootstrap_servers, topic)
    for partition, position in positions.items():
        if partition not in ends or not starts[partition] <= position <= ends[partition]:
            held = f"{starts.get(partition)} to {ends.get(partition)}"
            raise Incompatible(
                "delta_position_gone",
                f"{topic} partition {partition}: the version continues at {position}, the log holds {held}; wait for its next revision",
            )
    return {p: ends[p] for p in positions}


def decode_portions(record: SourceRecord, version: int, layout: RowLayout) -> list[Portion]:
    """One record as portions for this version; the last one carries position and watermark. Raises Corrupted or Incompatible."""
    delta = decode_delta({version: layout}, record.value or b"")
    header, at = delta.header, record.partition
    concerns = header.version in (version, WATERMARK_VERSION)
    cuts: list[Changes | None] = [None]
    if delta.changes:
        cuts = list(cut_changes(decode_changes(layout, delta.changes), DELTA_ROWS_PER_APPLY_MAX))
    last = Portion(version, at, cuts[-1], record.offset + 1, _offsets(header) if concerns else None, header.source_ms if concerns else 0)
    return [*(Portion(version, at, changes) for changes in cuts[:-1]), last]


def _offsets(header: DeltaHeader) -> dict[str, int]:
    return dict(zip(SHARD_TOPICS, header.next_offsets, strict=True))


class DeltaFollower:
    """One version's thread. `error` says why it stopped, if it did by itself."""

    def __init__(self, engine: Engine, kafka: KafkaSettings, version: int, layout: RowLayout, positions: Mapping[int, int]) -> None:
        self.version, self.layout = version, layout
        self.error: AifError | None = None
        self._engine, self._kafka, self._positions = engine, kafka, dict(positions)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"deltas-{version}", daemon=True)

    def start(self) -> None:
        """Begins to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stops and joins."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            bootstrap, prefix = self._kafka.bootstrap_servers, self._kafka.topic_prefix
            with TopicFollower(bootstrap, INDEX_DELTAS, self._positions, prefix=prefix) as follower:
                while not self._stopped.is_set():
                    for portion in self._portions(follower.poll(RECORDS_MAX, POLL_S)):
                        if not self._engine.offer_changes(portion):
                            return
        except AifError as error:
            self.error = error
        except Exception as error:  # the thread's end must have a reason that somebody can read
            self.error = Incompatible("deltas_failed", f"following index-deltas for version {self.version} failed: {error!r}")

    def _portions(self, records: list[SourceRecord]) -> Iterator[Portion]:
        for record in records:
            if self._stopped.is_set():
                return
            yield from decode_portions(record, self.version, self.layout)
