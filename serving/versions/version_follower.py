"""Follows the control log: loads the version that should be served into the free arena, applies its deltas, flips.

    control log -> manifest -> loader fills the free arena -> checkpoint -> admit -> deltas up to the end of the log at that moment
    -> warm up -> user halves move (calls/user_moves.py) -> flip

Invariants:
- After any error the running version stays, `last_error` says why, and the next attempt comes after a pause or as soon as the log has moved. A server
  that runs nothing yet loads the backup version instead; or, where only the deltas cannot be followed, serves the files as they are (deltas.py).
- A new revision of the served version changes nothing (C1). The former version stays resident and follows its deltas, so a flip back needs no load until
  another version needs its arena (C2).
- A version whose arena is nearly full is loaded again into a larger one. Meanwhile the copy in the full arena answers and takes changes.
- A version that was frozen never continues from its arena, because it missed changes (B11).
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

import numpy as np
import structlog

from infra.guarded_thread import OneThread
from infra.index.control_log import ControlLog
from infra.index.parts import read_checkpoint_copy, read_manifest
from infra.index.store import find_index_store
from infra.kafka.reader import SourceRecord
from infra.kafka.security import KafkaTopics
from infra.logs import Seldom
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable, lack_of_memory
from schemas.index.control import ControlState, VersionStatus
from schemas.index.layout import row_layout
from schemas.index.lifecycle import SERVABLE
from schemas.index.manifest import Manifest
from schemas.model.checkpoint_file import CheckpointFile, read_checkpoint_file
from schemas.token import VersionToken
from schemas.topics import INDEX_DELTAS
from schemas.users import BehaviourEvent
from serving.engine.devices.scorer import open_scorer
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import Arrivals, Resident
from serving.engine.tables.tables import NO_ROOM, Room, Tables
from serving.engine.work import UserWork
from serving.versions.deltas import CatchUp, DeltaFollower, Held
from serving.versions.loader import ARENAS, Loader, Source

GRACE_S = 2.0  # an arena is not reused while a user state made on it is younger than this
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 30.0  # between two attempts at the same version
WARM_UP_ROWS = 256
ENGINE_S_MAX = 60.0
CLOSE_S_MAX = 5.0
_LOADS_KEPT = 100
_LEAVE = "leave it with `aif index rollback`, and publish another checkpoint"

T = TypeVar("T")
logger = structlog.get_logger("versions")


class VersionFollower(OneThread):
    """One thread next to the engine, and the loader process.

    - last_error: why the wanted version is not served; empty if it is
    - counters: since the start; corrupted: failures because a file differs from its manifest; strangers: records of index-deltas that no shard wrote
    """

    close_s_max = CLOSE_S_MAX

    def __init__(
        self, engine: Engine, store_url: str, kafka: KafkaTopics, poll_s: float = 0.2, arena_bytes: int = 0, grace_s: float = GRACE_S
    ) -> None:
        self._engine, self._store_url, self._kafka, self._poll_s, self._grace_s = engine, store_url, kafka, poll_s, grace_s
        self._store = find_index_store(store_url, look=False)
        self._log = ControlLog(self._store)
        self._loader = Loader(arena_bytes)
        self._held: dict[int, Held] = {}
        self.last_error = ""
        self._last_checkpoint: CheckpointFile | None = None
        self.counters = {"loads": 0, "load_failures": 0, "flips": 0, "corrupted": 0, "strangers": 0}
        self._strangers = Seldom()
        self._load_seconds: deque[float] = deque(maxlen=_LOADS_KEPT)
        self._retry = (0.0, PAUSE_S_MIN, -1)  # (not before this time, the last pause, the log's length then)
        self._waiting: VersionToken | None = None  # could be loaded, and waits for an arena
        self.now_s: Callable[[], float] = time.time  # the time that ages of source records are compared with
        self.before_flip: Callable[[int], None] = lambda version: None  # called with the version that is about to go live; must not raise
        super().__init__("versions")
        self._catch_up = CatchUp(kafka, lambda: self._topic_id, self.stopping)

    def prepare(self) -> None:
        """Starts the loader process early, because it takes a second or two until it can load. Otherwise the thread starts it."""
        self._attempt(self._loader.start)

    def close(self) -> None:
        """Stops the thread, the delta followers and the loader process. The arenas' memory is freed when the engine uses it no longer. A load that does not end
        within seconds is given up: it may take minutes, and a server that ends would wait with its ports closed."""
        super().close()
        for held in list(self._held.values()):
            held.deltas.close()
        self._loader.close()

    @property
    def ready(self) -> bool:
        """Whether a version is live in the engine."""
        return self._engine.status().current is not None

    @property
    def behind(self) -> str:
        """Why the live version may lack changes that are in the log; "" if all is well. Ordinary lag is not meant."""
        current = self._engine.current
        held = None if current is None else self._held.get(current.version)
        return "" if held is None else held.error or held.behind

    def quality_by_rung(self) -> Mapping[str, float]:
        """What the card of the newest loaded checkpoint says of the rungs of the ladder (`aif eval data --rungs`); empty if nothing."""
        checkpoint = self._last_checkpoint
        return {} if checkpoint is None else {name: value for name, value in checkpoint.info.card.items() if ".rung." in name}

    def why_none(self) -> str:
        """Why no version is live yet."""
        state = self._log.state
        waiting = (
            "waiting for a published version in the control log" if state.current is None else f"{state.current.token} is being loaded"
        )
        starting = "the server is starting, or no worker has begun an index in its store"  # the log has not been read, or is empty
        return self.last_error or (waiting if state.next_number else starting)

    def why_incomplete(self) -> str:
        """Why answers leave live items out; empty if they do not."""
        status = self._engine.status()
        left_out = next((report.not_servable for report in status.residents if report.token == status.current), 0)
        if not left_out:
            return ""
        return f"arena_full: {left_out} items of {status.current} have no room and are left out; the version is being loaded into a larger arena"

    def take_load_seconds(self) -> list[float]:
        """Seconds from manifest to flip, of each version that went live since the last call."""
        return [self._load_seconds.popleft() for _ in range(len(self._load_seconds))]

    def _run(self) -> None:
        while not self.stopping.is_set():
            self._attempt(self._loader.start)  # also one that was killed, before the next version needs it
            self._attempt(self.step)
            self.stopping.wait(self._poll_s)

    def _attempt(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # whatever fails here, the running version keeps serving
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        before, self.last_error = self.last_error, _describe(error)
        if before == self.last_error and not self._may_try(self._log.state):
            return  # the log itself does not read, which is tried at every poll
        self.counters["load_failures"] += 1
        self.counters["corrupted"] += isinstance(error, Corrupted)
        _, pause, length = self._retry
        moved = self._log.state.next_number != length
        pause = PAUSE_S_MIN if moved else min(2 * pause, PAUSE_S_MAX)
        self._retry = (time.monotonic() + pause, pause, self._log.state.next_number)
        logger.warning("version_not_served", error=self.last_error, retry_s=pause)

    def step(self) -> None:
        """Read the log once and perform its decisions. Raises on failure; the running version is untouched then."""
        state = self._log.refresh()
        self._forget_frozen(state)
        wanted, current = state.current, self._engine.status().current
        if wanted is None or wanted.revision < 0:
            return
        held = self._held.get(wanted.version)
        if held is not None and not held.error:
            if current is None or current.version != wanted.version:
                self._flip(held)
            if not held.resident.tables.needs_growth:
                self.last_error = ""
            elif self._may_try(state):
                self._grow(wanted, held.resident.tables)
            self._catch_up.look(held)
        elif self._may_try(state):
            if held is not None:  # it takes no more changes, nor those that the copy which is loaded now has offered and left behind
                held.resident.error = self.last_error = held.error
            try:
                self._load(wanted)
            except Exception as error:
                self.last_error = _describe(error)  # now: the backup may take as long, and meanwhile this one would be called loading
                self._fall_back(state)
                raise

    def _fall_back(self, state: ControlState) -> None:
        """Loads the backup version if the server has just started and cannot load the wanted one.

        Not under a hold or a pin: then the backup may be the version that an operator has rejected.
        """
        if self._engine.status().current is not None or state.backup is None or state.held or state.pinned is not None:
            return
        try:
            self._load(state.versions[state.backup], instead=True)
        except Exception as error:
            logger.warning("backup_not_served", version=state.backup, error=_describe(error))

    def _grow(self, wanted: VersionStatus, tables: Tables) -> None:
        """Loads the served version again, into a larger arena."""
        rows, capacity, left_out = tables.rows, tables.capacity, tables.not_servable
        logger.warning("arena_nearly_full", token=str(wanted.token), rows=rows, capacity=capacity, not_servable=left_out)
        self.last_error = self.why_incomplete()
        self._load(wanted, room=tables.measure_room())

    def _may_try(self, state: ControlState) -> bool:
        not_before, _, length = self._retry
        return state.next_number != length or time.monotonic() >= not_before

    def _forget_frozen(self, state: ControlState) -> None:
        """Gives up the arenas of versions that missed changes: they are frozen, or were frozen for a while after they were loaded.

        If one of them is being served, it stays, without further changes, until another version or its own new revision is loaded.
        """
        current = self._engine.status().current
        for version, held in list(self._held.items()):
            status = state.versions.get(version)
            if status is not None and status.state in SERVABLE and held.revision > status.frozen_revision:
                continue
            held.resident.error = f"version {version} was frozen after it was loaded"
            if current is None or current.version != version:
                self._release(version, held)

    def _release(self, version: int, held: Held) -> bool:
        """Gives a version's arena back. False if the arena is still in use."""
        if not wait_for_engine(self._engine.release(version, self._grace_s)):
            return False
        held.deltas.close()
        if self._held.get(version) is held:
            del self._held[version]
        return True

    def _free_arena(self) -> int | None:
        """A free arena; the version that is not served gives up its arena once nothing uses it. None: not yet."""
        current = self._engine.status().current
        for version, held in list(self._held.items()):
            is_served = current is not None and current.version == version
            if len(self._held) == ARENAS and not is_served and not self._release(version, held):
                return None
        used = {held.arena for held in self._held.values()}
        return next((arena for arena in range(ARENAS) if arena not in used), None)

    # --- loading -----------------------------------------------------------------------------------------------------

    def _load(self, wanted: VersionStatus, instead: bool = False, room: Room = NO_ROOM) -> None:
        """Loads a version and flips to it, if it is still the wanted one or is served `instead` of it. `room`: what its arena must hold at least."""
        manifest = read_manifest(self._store, wanted)
        positions = {seal.shard: seal.delta_position for seal in manifest.seals}
        alone = self._engine.current is None
        if self._waiting != wanted.token and not alone:  # the broker is asked once, and not at every poll until an arena is free
            self._catch_up.check(wanted.version, positions)
        arena = self._free_arena()
        self._waiting = wanted.token if arena is None else None
        if arena is None:
            return
        started_s = time.monotonic()
        self.counters["loads"] += 1
        tables = self._loader.load(Source(self._store_url, manifest, wanted.manifest_sha256, room), arena)
        checkpoint = self._checkpoint(manifest)
        former = self._held.get(wanted.version)
        held = self._admit(wanted, manifest, checkpoint, tables, arena, positions)
        load_s, tiers_by = round(time.monotonic() - started_s, 3), held.resident.scorer.tiers_by
        logger.info("version_loaded", token=str(wanted.token), rows=tables.rows, arena=arena, load_s=load_s, tiers_by=tiers_by)
        try:
            self._catch_up.run(held, positions, alone)
            wait_for_engine(self._engine.run(lambda: warm_up(held.resident)))
        except Exception:  # of any kind: its arena has to be free for the next attempt
            self._discard(held, former)
            raise
        if former is not None:
            former.deltas.close()
        newest, served = self._log.refresh().current, self._engine.current
        is_another_copy = served is not None and served.version == wanted.version
        if instead or is_another_copy or (newest is not None and newest.version == wanted.version):
            if not is_another_copy:  # user halves of the version hold for every copy
                self.before_flip(wanted.version)
            self._flip(held)
            self._load_seconds.append(time.monotonic() - started_s)
        self._retry = (0.0, PAUSE_S_MIN, -1)
        self.last_error = ""

    @property
    def _topic_id(self) -> str:
        """Kafka's id of the index's own index-deltas; "" if the control log does not say."""
        init = self._log.state.init
        return "" if init is None else init.topic_ids.get(INDEX_DELTAS, "")

    def _checkpoint(self, manifest: Manifest) -> CheckpointFile:
        """The version's model from the index store, checked against the manifest. Reuses the last one if it is the same (a new build of rows)."""
        checkpoint = self._last_checkpoint
        if checkpoint is None or checkpoint.info.sha256 != manifest.checkpoint_sha256:
            data = read_checkpoint_copy(self._store, manifest.checkpoint_sha256)
            checkpoint = self._last_checkpoint = read_checkpoint_file(data, manifest.checkpoint_sha256)
        wanted = row_layout(checkpoint.spec)
        missing = [c.name for c in wanted.columns if c not in manifest.layout.columns]
        if missing or wanted.id_kind is not manifest.layout.id_kind:
            lacking = (
                f"columns {missing} that its rows do not have"
                if missing
                else f"{wanted.id_kind} ids, its rows have {manifest.layout.id_kind}"
            )
            raise Incompatible("other_layout", f"the model of version {manifest.version} needs {lacking}; {_LEAVE}")
        return checkpoint

    def _admit(
        self, wanted: VersionStatus, manifest: Manifest, checkpoint: CheckpointFile, tables: Tables, arena: int, positions: dict[int, int]
    ) -> Held:
        """Makes the loaded version resident and starts following its deltas."""
        scorer = open_scorer(self._engine.device, checkpoint.parameters, wanted.version, tables)
        watermark = tuple({**seal.source_offsets, INDEX_DELTAS: seal.delta_position} for seal in manifest.seals)
        source_ms = {seal.shard: seal.source_ms for seal in manifest.seals}
        resident = Resident(wanted.token, tables, scorer, watermark, dict(positions), source_ms, arrivals=Arrivals(self.now_s))
        deltas = DeltaFollower(self._engine, self._kafka, resident, self._topic_id, self._pass_over)
        wait_for_engine(self._engine.admit(resident))
        held = self._held[wanted.version] = Held(arena, wanted.revision, resident, deltas)
        deltas.start()
        return held

    def _pass_over(self, record: SourceRecord) -> None:
        self.counters["strangers"] += 1
        if self._strangers.happened():
            logger.error(
                "delta_passed_over",
                partition=record.partition,
                offset=record.offset,
                record_bytes=len(record.value or b""),
                count=self.counters["strangers"],
                why="no shard wrote this record of index-deltas; allow only workers to write there",
            )

    def _discard(self, held: Held, former: Held | None) -> None:
        """Gives up a version that was admitted and cannot be served. `former`: an older copy of it in the other arena, which is held again."""
        wait_for_engine(self._engine.withdraw(held.resident))
        held.deltas.close()
        del self._held[held.resident.version]
        if former is not None:
            self._held[held.resident.version] = former

    def _flip(self, held: Held) -> None:
        wait_for_engine(self._engine.install(held.resident))
        self.counters["flips"] += 1
        logger.info("version_live", token=str(held.resident.token), rows=held.resident.tables.rows)


def _describe(error: Exception) -> str:
    named = error if isinstance(error, AifError) else lack_of_memory(error)
    return f"unexpected: {error!r}" if named is None else str(named)


def wait_for_engine(future: "Future[T]") -> T:
    """The engine's answer. Raises Unavailable (`engine_busy`); then the engine will not do it later either. A version that it admitted so late would answer
    from an arena that is free to be written over."""
    try:
        return future.result(ENGINE_S_MAX)
    except FutureTimeoutError as error:
        if not future.cancel():  # it does it now
            return future.result()
        raise Unavailable("engine_busy", f"the engine did not answer in {ENGINE_S_MAX:g} s") from error


def warm_up(resident: Resident) -> None:
    """Scores a few rows for an empty and for a known user. Raises Corrupted (`bad_canary`) if a score is not finite. Without rows it does nothing."""
    tables, scorer = resident.tables, resident.scorer
    rows = tables.live_rows(WARM_UP_ROWS)
    events = [BehaviourEvent(tables.id_at(int(row)), "click", 0) for row in rows[:8]]
    for work in (UserWork(), UserWork({}, events)):
        scores, probabilities = scorer.score(scorer.user_state(work), rows, {})
        if not (np.isfinite(scores).all() and np.isfinite(probabilities).all()):
            raise Corrupted("bad_canary", f"version {resident.token} gives scores that are not finite; {_LEAVE}")
