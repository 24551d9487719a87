"""The control log in the index store: read new entries, append one decision (FORMAT.md section 7, protocol B1 to B5).

Invariants:
- An append takes the number after everything that was read, so a decision is always made on the whole log. If another writer took that number, the log is
  read on and the decision made again. Every successful append is in the log exactly once, and numbers have no gaps.
- A reader begins at the newest fold and reads the entries after it. From entry 0 it gets the same state.
- An entry that would break an invariant (schemas/index/control_invariants.py) is never put.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable

from infra.failpoints import failpoint
from infra.index.control_folds import FOLD_EVERY, control_path, entry_number, find_fold, put_fold
from infra.index.store import IndexStore, check_exclusive_create, read_if_there, read_many
from infra.index.store_path import ask_again
from schemas.errors import Corrupted, Incompatible, Unavailable
from schemas.ids import IdKind
from schemas.index.control import ControlState, Entry, Init, fold_entry, plan_entry
from schemas.index.control_invariants import find_broken_step
from schemas.index.lifecycle import EntryKind
from schemas.limits import CONTROL_ENTRY_BYTES_MAX

_CONFLICTS_MAX = 10_000  # each means that another process made progress
_LOOK_BACK_EVERY = 25  # refreshes: a worker's five seconds


class ControlLog:
    """The log, folded as far as it was read. Threads may share it; other processes append at the same time. `fold_every`: entries from one fold in the store
    to the next."""

    def __init__(self, store: IndexStore, fold_every: int = FOLD_EVERY) -> None:
        self.store = store
        self._fold_every = fold_every
        self._state = ControlState()
        self._lock = threading.RLock()
        self._begun = False
        self._newest: bytes | None = None  # the last entry that was folded
        self._fold_due: tuple[ControlState, bytes] | None = None  # a state whose fold may not be in the store, and its last entry
        self._refreshes = 0

    @property
    def state(self) -> ControlState:
        """The fold as of the last `refresh` or `append`."""
        return self._state

    def refresh(self) -> ControlState:
        """Read and fold the entries that are new. Raises Corrupted (a damaged entry or a gap), Unavailable (the store does not answer, or is not the
        one that it was: `index_store_gone`)."""
        with self._lock:
            if not self._begun:
                self._look_back()
                self._begin()
                self._begun = True
            raw = self._read(self._state.next_number)
            if (raw is not None or self._refreshes % _LOOK_BACK_EVERY == 0) and self._look_back():
                raw = self._read(self._state.next_number)
            self._refreshes += 1
            while raw is not None:
                self._take(raw)
                raw = self._read(self._state.next_number)
            return self._state

    def append(self, make: Callable[[ControlState], Entry | None]) -> ControlState:
        """Append what `make` decides on the newest state (None: nothing). Returns the state after it.

        `make` is called again whenever another writer was faster, so it must have no effects. Raises what `plan_entry` raises, and Corrupted
        (`control_invariant`).
        """
        with self._lock:
            for _ in range(_CONFLICTS_MAX):
                state = self.refresh()
                entry = make(state)
                if entry is None:
                    return state
                raw = _plan_sound_entry(state, entry)
                if self._look_back():
                    continue
                failpoint("before-control-append")
                # A number that is free may have been taken, and its entry removed since. That takes a writer that was stopped for longer than the grace
                # period between reading and putting. Entries are removed in ascending order, so the one before was removed then too.
                if self.store.put_exclusive(control_path(state.next_number), raw) and not self._look_back():
                    failpoint("after-control-append")
                    self._take(raw)
                    if self._fold_due is not None and put_fold(self.store, *self._fold_due):
                        self._fold_due = None
                    return self._state
        raise Unavailable(
            "control_log_contended",
            f"{_CONFLICTS_MAX} other entries came first: too many writers on {self.store.url}; try again in a moment",
        )

    def _begin(self) -> None:
        """Fold what the store has: the newest fold, then the entries after it. An entry that is missing with another one after it was lost, and reading
        would end there in silence."""
        self._take_newest_fold()
        listed = self.store.list("control/", after=control_path(self._state.next_number - 1) if self._state.next_number else "")
        newest = max((number for path in listed if (number := entry_number(path)) is not None), default=-1)
        numbers = range(self._state.next_number, newest + 1)
        paths = [control_path(number) for number in numbers]
        for number, raw in zip(numbers, read_many(self.store, paths, CONTROL_ENTRY_BYTES_MAX), strict=True):
            if raw is None:
                raw = ask_again(functools.partial(self._read, number))
            if raw is None:
                raise Corrupted(
                    "control_log_gap",
                    f"{control_path(number)} is missing but {control_path(newest)} exists, and no fold after it can be read; restore control/ and "
                    f"folds/ of {self.store.url} from a copy of the store",
                )
            self._take(raw)

    def _take_newest_fold(self) -> bool:
        """Continue from the newest fold in the store if it is ahead of this log. Returns whether it was."""
        found = find_fold(self.store, self._state.next_number, self._state.index_id)
        if found is not None:
            self._state, self._newest = found
            self._fold_due = None
        return found is not None

    def _take(self, raw: bytes) -> None:
        number = self._state.next_number
        try:
            self._state, self._newest = fold_entry(self._state, number, raw), raw
        except Corrupted as error:
            message = f"{control_path(number)} of {self.store.url}: {error.message}; restore it from a copy of the store"
            raise Corrupted(error.code, message) from error
        if self._state.next_number % self._fold_every == 0 and self._state.init is not None and not self._state.unknown_entry:
            self._fold_due = self._state, raw

    def _read(self, number: int) -> bytes | None:
        return read_if_there(self.store, control_path(number), CONTROL_ENTRY_BYTES_MAX)

    def _look_back(self) -> bool:
        """Compare the last entry that was read with the store's. A store that was emptied, or whose disk is not mounted, would look like one where nothing is
        new, and another one's entries like new ones. Returns whether the state moved on to a fold, because the entry was removed after it was folded."""
        if self._newest is None:
            return False
        last = self._state.next_number - 1
        raw = self._read(last)
        if raw != self._newest:
            self._begun, self._refreshes = False, 0  # so that the next refresh looks again, and lists
        if raw is None:
            if self._was_folded():
                return True
            raw = ask_again(functools.partial(self._read, last))
        if raw == self._newest:
            return last == 0 and self._take_newest_fold()  # entry 0 stays when those after it are removed
        raise Unavailable(
            "index_store_gone",
            f"{control_path(last)} of {self.store.url} is gone or not the entry that was read before. Mount or restore the index store that was there, or stop "
            "every process of this index to begin a new one",
        )

    def _was_folded(self) -> bool:
        """Whether a fold is ahead of this log; then its state is taken. Where the store is not there, none is."""
        try:
            return self._take_newest_fold()
        except Unavailable as error:
            if error.code != "index_store_missing":
                raise
            return False


def _plan_sound_entry(state: ControlState, entry: Entry) -> bytes:
    """`plan_entry`, and Corrupted (`control_invariant`) if the state after the entry would break an invariant: a defect of this code or of an older entry."""
    raw = plan_entry(state, entry)
    broken = find_broken_step(state, fold_entry(state, state.next_number, raw))
    if broken:
        raise Corrupted(
            "control_invariant",
            f"{entry.kind} of version {entry.version} is not written, because it would break {'; '.join(broken)}; the log is unchanged and versions go on "
            "as they are: report this as a defect, with a copy of control/",
        )
    return raw


def append_entry(control_log: ControlLog, make: Callable[[ControlState], Entry | None]) -> Entry | None:
    """Appends what `make` decides on the newest log. Returns the entry, or None if there was nothing to write.

    Most of the time there is nothing to write, and the log as it was last read says so already: then the store is not asked.
    """
    read = control_log.state
    if read.next_number and make(read) is None:
        return None
    decided: Entry | None = None

    def decide(state: ControlState) -> Entry | None:
        nonlocal decided
        decided = make(state)  # called again after each conflict: the last decision is the one that was written
        return decided

    control_log.append(decide)
    return decided


def ensure_init(log: ControlLog, init: Init, at_ms: int, by: str) -> ControlState:
    """Give an empty index its identity, or check that it has this one (A1). Raises Incompatible: `other_index` with what differs, or
    `no_exclusive_create` where the store cannot hold a control log."""
    if log.refresh().init is None:
        check_exclusive_create(log.store)
    state = log.append(lambda s: Entry(EntryKind.INIT, at_ms, by, init=init) if s.init is None else None)
    check_identity(state, init)
    return state


def read_state(store: IndexStore) -> ControlState:
    """The state of the log in a store that a process only reads; that of an empty log where the store does not exist."""
    try:
        return ControlLog(store).refresh()
    except Unavailable as error:
        if error.code != "index_store_missing":
            raise
        return ControlState()


def check_index_settings(state: ControlState, prefix: str, shards: int, user_partitions: int, id_kind: IdKind | str) -> None:
    """Raises Incompatible (`other_index`) where the index has other topics or fixed numbers than these settings; any will do while there is no index."""
    if state.init is not None:
        topics = {name: prefix + name for name in state.init.topics}
        check_identity(
            state, dataclasses.replace(state.init, shards=shards, user_partitions=user_partitions, id_kind=IdKind(id_kind), topics=topics)
        )


def check_identity(state: ControlState, wanted: Init) -> None:
    """Raises Incompatible unless the index is the one that `wanted` describes; topic ids are compared where both sides know them."""
    if state.init is None:
        raise Incompatible("no_index", "the index store is empty; run `aif topics apply` or start a worker first")
    differences = [
        f"{f.name}: index has {getattr(state.init, f.name)}, here {getattr(wanted, f.name)}"
        for f in dataclasses.fields(Init)
        if f.name not in ("topics", "topic_ids") and getattr(state.init, f.name) != getattr(wanted, f.name)
    ]
    differences += [  # another prefix changes all of them, and one says so
        f"topic {name}: index has {found}, here {here}"
        for name in sorted({*state.init.topics, *wanted.topics})
        if (found := state.init.topics.get(name, "none")) != (here := wanted.topics.get(name, "none"))
    ][:1]
    differences += [
        f"topic id of {topic}: index has {found}, broker has {wanted.topic_ids[topic]}"
        for topic, found in state.init.topic_ids.items()
        if wanted.topic_ids.get(topic, found) != found
    ]
    if differences:
        raise Incompatible(
            "other_index",
            f"the index store belongs to another index ({'; '.join(differences)}); use the settings and the broker of this index, or another index store and "
            "data directory. If a topic was deleted and created again, publish the catalogue again",
        )
