"""Follows index-deltas for one resident version, from that version's own positions, and gives its changes to the engine.

This thread decodes; the engine gets arrays, one whole record at a time (at most DELTA_RECORD_BYTES_MAX), with its position, watermark and time. So no
answer sees half a record, and none claims more than was applied.
Invariant: a position that the log no longer holds is an error (`delta_position_gone`), never a silent jump; a record of another cluster's index-deltas is
one too (`other_topic`). A record that no shard wrote holds nothing of the index: it is logged and passed over. If the next record's sequence leaves one out,
the record was the shard's own, damaged. That is an error (`delta_lost`), or the watermark would include changes that were never applied. So the follower
also reads the record before a version's position, if the log still has it: only its sequence shows that the first record is damaged.

Before it goes live, a version catches up. A server that serves a version waits: the next one goes live with every delta that was in the log at the hand-over
(C2). A server that has just started may be unable to: the broker is away, or the deltas are damaged or gone. It serves the sealed files with the deltas that
it could apply, because the alternative is no answer. It says so (`behind`) until the version has reached the end of the log.

Source: protocol C2, FORMAT.md section 8.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from infra.kafka.admin import check_topic_id, end_offsets, start_offsets
from infra.kafka.follower_thread import FollowerThread
from infra.kafka.reader import SourceRecord
from infra.kafka.security import KafkaTopics
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable
from schemas.index.layout import DeltaRecord, RowLayout, find_delta
from schemas.index.manifest import describe_repair
from schemas.topics import INDEX_DELTAS, SHARD_TOPICS
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import ChangeBatch, Resident
from serving.engine.tables.changes import changes_of

CATCH_UP_S_MAX = 120.0
ALONE_S_MAX = 3.0  # for the broker's answer, and between two deltas, while the server serves nothing
_BROKER_S_MAX = 30.0
_CATCH_UP_POLL_S = 0.005
_LOOK_EVERY_S, _LOOK_S_MAX = 2.0, 1.0
RETRY_S = 0.5

logger = structlog.get_logger("versions")


def check_positions(kafka: KafkaTopics, version: int, positions: Mapping[int, int], topic_id: str, deadline_s: float) -> dict[int, int]:
    """The end offset of every partition now. `topic_id`: of the index's own index-deltas, "" if it is not known.

    Raises Incompatible: `delta_position_gone` if the log lost records after the `positions` of a version, `other_topic` if the topic has another id;
    Unavailable after about `deadline_s` without an answer.
    """
    topic = kafka.topic_prefix + INDEX_DELTAS
    bootstrap = kafka.bootstrap
    check_topic_id(bootstrap, topic, topic_id, deadline_s=deadline_s)
    starts, ends = start_offsets(bootstrap, topic, deadline_s=deadline_s), end_offsets(bootstrap, topic, deadline_s=deadline_s)
    for partition, position in positions.items():
        if partition not in ends or not starts[partition] <= position <= ends[partition]:
            held = f"{starts.get(partition)} to {ends.get(partition)}"
            raise Incompatible(
                "delta_position_gone",
                f"{topic} partition {partition}: version {version} continues at {position}, the log holds {held}; {describe_repair(f'versions/{version}/')}",
            )
    return {p: ends[p] for p in positions}


def decode_changes(record: SourceRecord, delta: DeltaRecord | None, version: int, layout: RowLayout) -> ChangeBatch:
    """The changes of one whole record for this version, without changes or watermark if it is of another or of no shard. Raises Corrupted."""
    position = record.offset + 1
    if delta is None or (header := delta.header).version != version:
        return ChangeBatch(version, record.partition, None, position)
    changes = None if delta.block is None else changes_of(delta.block, layout.id_kind)
    offsets = {**dict(zip(SHARD_TOPICS, header.next_offsets, strict=True)), INDEX_DELTAS: position}
    return ChangeBatch(version, record.partition, changes, position, offsets, header.source_ms)


class DeltaFollower(FollowerThread):
    """The thread of one version in memory, from its own positions on. `error`: why it stopped by itself; None while it runs or after `close`. `on_stranger`
    gets each record that no shard wrote."""

    def __init__(
        self,
        engine: Engine,
        kafka: KafkaTopics,
        resident: Resident,
        topic_id: str,
        on_stranger: Callable[[SourceRecord], None],
    ) -> None:
        effect, name = f"version {resident.version} answers without newer changes", f"deltas-{resident.version}"
        super().__init__(kafka, INDEX_DELTAS, RETRY_S, effect, name, topic_id)
        self.version, self.layout, self._resident = resident.version, resident.tables.layout, resident
        self._on_stranger = on_stranger
        self.error: AifError | None = None
        self._engine, self._positions = engine, dict(resident.positions)
        # By partition: of its last record that a shard wrote, and the highest, after which its owner continues. They differ after copies of earlier records.
        self._sequences: dict[int, tuple[int, int]] = {}
        self._passed_over: dict[int, int] = {}  # by partition, the offset of one that does not read, since that record

    def begin(self, topic: str) -> dict[int, int]:
        """The positions, one record earlier where no sequence is known yet."""
        unknown = self._positions.keys() - self._sequences.keys()
        starts = start_offsets(self._kafka.bootstrap, topic, deadline_s=ALONE_S_MAX) if unknown else {}
        return {p: at - 1 if p in unknown and starts.get(p, at) < at else at for p, at in self._positions.items()}

    def ends_at(self, error: Exception) -> bool:
        """Where the broker is away, it continues from the last position that was handed over. Any other error needs a new load of the version."""
        if isinstance(error, Unavailable):
            return False
        if not isinstance(error, AifError):
            error = Incompatible("deltas_failed", f"following index-deltas for version {self.version} failed: {error!r}")
        self.error = error
        return True

    def take(self, record: SourceRecord) -> None:
        """Hands the changes of a record over to the engine, as a whole."""
        delta = find_delta({self.version: self.layout}, record.partition, record.value or b"")
        if record.offset < self._positions[record.partition]:
            if delta is not None:
                self._sequences[record.partition] = (delta.header.sequence, delta.header.sequence)
            return
        if delta is None:
            self._on_stranger(record)
            self._passed_over[record.partition] = record.offset
        else:
            self._check_sequence(record.partition, delta.header.sequence)
        changes = decode_changes(record, delta, self.version, self.layout)
        if self.stopping.is_set() or not self._engine.offer_changes(changes, self._resident):
            self.stopping.set()
            return
        self._positions[record.partition] = record.offset + 1

    def _check_sequence(self, partition: int, sequence: int) -> None:
        """Looks only where something was passed over: a shard with a new owner counts again from its snapshot."""
        passed_over, (last, highest) = self._passed_over.pop(partition, None), self._sequences.get(partition, (sequence, sequence))
        if passed_over is not None and sequence > last + 1 and sequence != highest + 1:
            raise Corrupted(
                "delta_lost",
                f"{INDEX_DELTAS} partition {partition}: the record at offset {passed_over} is damaged, and delta {last + 1} of the shard is missing; "
                f"version {self.version} answers without later changes; load it again with `aif index revise {self.version}`, or promote another version",
            )
        self._sequences[partition] = (sequence, max(sequence, highest))


# --- catching up ----------------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """A version in an arena. `behind`: why it may lack deltas that were in the log when it went live; "" if it does not."""

    arena: int
    revision: int
    resident: Resident
    deltas: DeltaFollower
    behind: str = ""

    @property
    def error(self) -> str:
        """Why it takes no more changes; empty if it does."""
        return self.resident.error or (str(self.deltas.error) if self.deltas.error else "")


class CatchUp:
    """`topic_id`: Kafka's id of the index's index-deltas, "" if it is not known. Used by the follower's thread."""

    def __init__(self, kafka: KafkaTopics, topic_id: Callable[[], str], stopped: threading.Event) -> None:
        self._kafka, self._topic_id, self._stopped = kafka, topic_id, stopped
        self._looked_s = 0.0

    def check(self, version: int, positions: Mapping[int, int], deadline_s: float = _BROKER_S_MAX) -> dict[int, int]:
        """See `check_positions`."""
        return check_positions(self._kafka, version, positions, self._topic_id(), deadline_s)

    def run(self, held: Held, positions: Mapping[int, int], alone: bool) -> None:
        """Waits until the engine has applied every delta that is in the log now. `alone`: the server serves nothing yet; then a failure is noted in
        `held.behind`. Otherwise raises what `check` raises, Incompatible (`deltas_failed`), Unavailable (`deltas_behind`)."""
        try:
            self._follow(
                held,
                self.check(held.resident.version, positions, ALONE_S_MAX if alone else _BROKER_S_MAX),
                ALONE_S_MAX if alone else CATCH_UP_S_MAX,
            )
        except AifError as error:
            if not alone or self._stopped.is_set():
                raise
            held.behind = str(error)
            logger.warning("version_starts_behind", token=str(held.resident.token), error=held.behind)

    def look(self, held: Held) -> None:
        """Called again and again while a version is behind: notes when it has reached the end of the log."""
        if not held.behind or held.error or time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        try:
            ends = self.check(held.resident.version, held.resident.positions, _LOOK_S_MAX)
            if all(held.resident.positions[p] >= end for p, end in ends.items()):
                held.behind = ""
                logger.info("version_caught_up", token=str(held.resident.token))
        except AifError as error:
            held.behind = str(error)
        self._looked_s = time.monotonic()

    def _follow(self, held: Held, ends: Mapping[int, int], idle_s_max: float) -> None:
        """Raises Unavailable (`deltas_behind`) after CATCH_UP_S_MAX, or `idle_s_max` without any progress."""
        positions, began_s = dict(held.resident.positions), time.monotonic()
        moved_s = began_s
        while any(held.resident.positions[p] < end for p, end in ends.items()):
            if held.error:
                raise Incompatible("deltas_failed", f"version {held.resident.version} cannot follow its deltas: {held.error}")
            now_s, before = time.monotonic(), positions
            if (positions := dict(held.resident.positions)) != before:
                moved_s = now_s
            if now_s - began_s > CATCH_UP_S_MAX or now_s - moved_s > idle_s_max or self._stopped.wait(_CATCH_UP_POLL_S):
                raise Unavailable(
                    "deltas_behind",
                    f"version {held.resident.version} stands at {positions} in index-deltas after {now_s - began_s:.0f} s, wanted {dict(ends)}; is the "
                    "broker up?",
                )
