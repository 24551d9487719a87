"""The control log as a state machine: any writers, any order; and every entry on a version in every state, through the whole fold."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas.errors import Incompatible
from schemas.index.control import ControlState, Entry, encode_entry, fold_entry, plan_entry
from schemas.index.control_fold import decode_fold, encode_fold
from schemas.index.control_invariants import find_broken_step
from schemas.index.lifecycle import (
    FINAL,
    MOVED_BY_PROMOTE,
    RECEIVES_INCREMENTS,
    SERVABLE,
    Cause,
    EntryKind,
    State,
    describe_diagram,
    transitions,
)
from tests.schemas.index.entries import INIT, act, appended, lived, publish, want
from tests.schemas.index.entries import log as folded

VERSIONS = st.integers(0, 5)


class ControlLogMachine(RuleBasedStateMachine):
    """The entries that workers, operators and broken tools append. Next to the fold it keeps facts that only a history has."""

    @initialize()
    def begin(self) -> None:
        self.log: list[bytes] = []
        self.state = ControlState()
        self.ended: dict[int, State] = {}
        self.published: set[tuple[int, int]] = set()
        self.wanted: set[tuple[int, int]] = set()
        self.append(INIT)

    def append(self, entry: Entry) -> bool:
        """As a writer that may be broken: the entry is in the log whether it makes sense or not. Whether the fold took it."""
        raw, before = encode_entry(entry), self.state
        planned = True
        try:
            plan_entry(before, entry)
        except Incompatible:
            planned = False
        self.log.append(raw)
        self.state = fold_entry(before, before.next_number, raw)
        assert find_broken_step(before, self.state) == []
        if not self.state.unknown_entry:
            assert decode_fold(encode_fold(self.state, raw))[0] == self.state
        taken = len(self.state.refused) == len(before.refused)
        assert taken is planned, "a plan refuses the entries that the fold refuses"
        if not taken:
            assert dataclasses.replace(self.state, next_number=before.next_number, refused=before.refused) == before
        return taken

    @rule(version=VERSIONS)
    def a_checkpoint_arrives(self, version: int) -> None:
        if self.append(want(version)):
            assert (version, 0) not in self.wanted
            self.wanted.add((version, 0))

    @rule(version=VERSIONS, cause=st.sampled_from(list(Cause)), revision=st.integers(0, 4))
    def any_revision_is_wanted(self, version: int, cause: Cause, revision: int) -> None:
        if self.append(want(version, revision, cause)):
            assert (version, revision) not in self.wanted, "a number that was given up is never used again"
            self.wanted.add((version, revision))

    @rule(version=VERSIONS, cause=st.sampled_from([Cause.REVISE, Cause.REVIVE]))
    def the_next_revision_is_wanted(self, version: int, cause: Cause) -> None:
        if version in self.state.versions:
            self.any_revision_is_wanted(version=version, cause=cause, revision=self.state.versions[version].next_revision)

    @rule(version=VERSIONS, wish=st.sampled_from(["promote", "rollback", "elope"]))
    def somebody_wishes_for_a_frozen_version(self, version: int, wish: str) -> None:
        status = self.state.versions.get(version)
        if status is not None and status.state is State.FROZEN:
            entry = dataclasses.replace(want(version, status.next_revision, Cause.REVIVE), wish=wish)
            if self.append(entry):
                self.wanted.add((version, status.next_revision))
                assert wish != "elope" and (wish == "promote" or self.state.held)
                assert [v for v, s in self.state.versions.items() if s.wish] == [version]

    @rule(version=VERSIONS)
    def all_shards_have_sealed(self, version: int) -> None:
        status = self.state.versions.get(version)
        if status is not None and status.wanted_revision is not None:
            assert self.append(publish(version, status.wanted_revision)) is (status.state not in FINAL)
            self.published.add((version, status.wanted_revision))

    @rule(version=VERSIONS, revision=st.integers(0, 3))
    def a_stray_publish(self, version: int, revision: int) -> None:
        if self.append(publish(version, revision)):
            assert (version, revision) in self.wanted and (version, revision) not in self.published
            self.published.add((version, revision))

    @rule(version=VERSIONS)
    def somebody_promotes(self, version: int) -> None:
        former = self.state.live
        if self.append(act(EntryKind.PROMOTE, version)):
            assert (self.state.live, self.state.backup) == (version, former)
            assert not self.state.versions[version].turned_away

    @rule(version=VERSIONS)
    def somebody_rolls_back(self, version: int) -> None:
        backup = self.state.backup
        if self.append(act(EntryKind.ROLLBACK, version)):
            assert version == backup and self.state.held and self.state.live == version
            assert self.state.backup is not None and self.state.versions[self.state.backup].turned_away

    @rule(
        kind=st.sampled_from(
            [EntryKind.PIN, EntryKind.WITHHOLD, EntryKind.APPROVE, EntryKind.ABORT, EntryKind.FREEZE, EntryKind.DROP, EntryKind.REJECT]
        ),
        version=VERSIONS,
    )
    def somebody_decides(self, kind: EntryKind, version: int) -> None:
        pinned = self.state.pinned
        if self.append(act(kind, version)) and kind in (EntryKind.FREEZE, EntryKind.DROP):
            assert version not in (pinned, self.state.live)

    @rule(kind=st.sampled_from([EntryKind.HOLD, EntryKind.RELEASE, EntryKind.UNPIN]))
    def somebody_holds_or_releases(self, kind: EntryKind) -> None:
        assert self.append(act(kind))
        if kind is not EntryKind.UNPIN:
            assert bool(self.state.held_why) is self.state.held is (kind is EntryKind.HOLD)

    @rule()
    def a_reader_folds_from_the_start(self) -> None:
        state = ControlState()
        for raw in self.log:
            state = fold_entry(state, state.next_number, raw)
        assert state == self.state

    @invariant()
    def there_is_one_live_and_one_backup_version(self) -> None:
        states = {v: s.state for v, s in self.state.versions.items()}
        assert [v for v, s in states.items() if s is State.LIVE] == ([] if self.state.live is None else [self.state.live])
        assert [v for v, s in states.items() if s is State.BACKUP] == ([] if self.state.backup is None else [self.state.backup])

    @invariant()
    def what_is_served_is_published_and_written_on(self) -> None:
        current = self.state.current
        if current is not None:
            assert current.state in SERVABLE and current.revision >= 0 and current in self.state.receiving

    @invariant()
    def what_is_over_stays_over_and_what_is_served_was_published(self) -> None:
        for version, status in self.state.versions.items():
            assert version not in self.ended or status.state is self.ended[version]
            if status.state in FINAL:
                self.ended[version] = status.state
            assert (status.ended_at_ms > 0) is (status.state in FINAL)
            assert (status.state in SERVABLE or status.state is State.FROZEN) <= (status.revision >= 0)
            assert status.last_wanted >= max(status.revision, -1 if status.wanted_revision is None else status.wanted_revision)

    @invariant()
    def marks_stand_only_where_they_mean_something(self) -> None:
        for status in self.state.versions.values():
            assert not (status.withheld and status.approved)
            assert not status.wish or status.state in (State.PUBLISHED, State.FROZEN)
            assert not (status.withheld or status.turned_away) or status.state is not State.LIVE
        assert not (self.state.held_why and not self.state.held)

    @invariant()
    def one_new_version_builds_and_one_waits(self) -> None:
        wanted = sorted(v for v, s in self.state.versions.items() if s.state is State.WANTED)
        assert len(wanted) <= 2 and (self.state.building is None) is (not wanted)
        assert all(s.state in RECEIVES_INCREMENTS or s.is_reviving for s in self.state.receiving)
        assert sum(s.state is State.WANTED for s in self.state.receiving) <= 1


TestControlLogMachine = ControlLogMachine.TestCase
TestControlLogMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


# --- every entry on a version in every state, through the fold -------------------------------------------------------


HISTORIES: dict[State, list[Entry]] = {  # version 7 in each state, after its last possible revision 0
    State.NONE: [],
    State.WANTED: [want(7)],
    State.PUBLISHED: [want(7), publish(7)],
    State.LIVE: lived(7),
    State.BACKUP: lived(7, 8),
    State.FROZEN: lived(7, 8, 9),
    State.REMOVED: [*lived(7, 8, 9), act(EntryKind.DROP, 7)],
    State.REJECTED: [act(EntryKind.REJECT, 7)],
    State.ABORTED: [want(7), act(EntryKind.ABORT, 7)],
}
ENTRIES = {
    **{(str(k), ""): act(k, 7) for k in EntryKind if k not in (EntryKind.INIT, EntryKind.WANT, EntryKind.PUBLISH)},
    ("publish", ""): publish(7, 1),
    **{("want", str(c)): want(7, 0 if c in (Cause.CHECKPOINT, Cause.ADOPT) else 1, c) for c in Cause},
}
OF_NO_VERSION = {"hold", "release", "unpin"}


@pytest.mark.parametrize("named", ENTRIES, ids=lambda n: "-".join(filter(None, n)))
@pytest.mark.parametrize("state", HISTORIES)
def test_every_entry_on_every_state_is_a_listed_transition_or_a_named_refusal_that_changes_nothing(
    state: State, named: tuple[str, str]
) -> None:
    log = folded(*HISTORIES[state])
    before = log.versions[7].state if 7 in log.versions else State.NONE
    assert before is state
    if named[0] == "publish" and state in (*SERVABLE, State.FROZEN):  # a publish needs its want
        cause = Cause.REVIVE if state is State.FROZEN else Cause.REVISE
        log = appended(log, want(7, 1, cause))
    entry = publish(7, 0) if named[0] == "publish" and state is State.WANTED else ENTRIES[named]
    listed = {(s, e): t for s, e, t in transitions()}
    expected = listed.get((state, f"want ({named[1]})" if named[0] == "want" else named[0]))
    after = fold_entry(log, log.next_number, encode_entry(entry))
    if named[0] in OF_NO_VERSION:
        assert not after.refused and after.versions == log.versions
    elif expected is None:
        assert len(after.refused) == 1 and after.versions == log.versions, after.refused
        with pytest.raises(Incompatible) as refusal:
            plan_entry(log, entry)
        assert refusal.value.code in {"refused_transition", "unknown_version", "not_wanted", "wrong_revision"}
    else:
        assert not after.refused and after.versions[7].state is expected


def test_a_promotion_moves_other_versions_only_as_the_table_says() -> None:
    seen = set()
    for steps in (lived(0, 1, 2), [*lived(0, 1), act(EntryKind.PIN, 0), *lived(2)], [*lived(0), want(1), publish(1), *lived(2)]):
        log = folded()
        for one in steps:
            after = appended(log, one)
            if one.kind is EntryKind.PROMOTE:
                pairs = {(s.state, after.versions[v].state) for v, s in log.versions.items() if v != one.version}
                seen |= {(a, b) for a, b in pairs if a is not b}
            log = after
    assert seen == set(MOVED_BY_PROMOTE)


# --- the diagram -----------------------------------------------------------------------------------------------------


def test_the_diagram_in_the_architecture_is_drawn_from_the_table() -> None:
    """If this fails, put what `describe_diagram()` gives into the block."""
    text = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()
    blocks = re.findall(r"```mermaid\n(stateDiagram-v2\n.*?)\n```", text, re.DOTALL)
    assert blocks == [describe_diagram()]


def test_the_diagram_has_every_transition_and_every_state() -> None:
    drawn = describe_diagram()
    assert all(str(state) in drawn for state in State if state is not State.NONE)
    assert all(entry in drawn for _, entry, _ in transitions())
