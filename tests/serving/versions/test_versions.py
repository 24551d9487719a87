"""The version follower on a real index store, a real loader process and a real topic of deltas."""

import contextlib
import dataclasses
import os
import re
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from infra.garbage import collector_paused
from infra.index import control_log
from infra.index.control_folds import control_path
from infra.index.store import open_index_store
from infra.kafka.security import KafkaTopics
from infra.processes import wait_until
from schemas.errors import Incompatible
from schemas.ids import IdKind, partition_of
from schemas.index.layout import row_layout
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import checkpoint_path
from schemas.topics import INDEX_DELTAS
from serving.engine.tables.arena import NEW_ROWS_MIN
from serving.versions import deltas, version_follower
from serving.versions.version_follower import VersionFollower
from tests.infra.kafka.deleted_topics import delete_topics
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import item_id, make_version, stamp
from tests.serving.index_samples import SHARDS, DeltaWriter, decide
from tests.serving.versions.deployment import ITEMS, WAIT_S, Deployment, changes, with_bids


def test_a_version_goes_live_with_the_deltas_that_were_in_the_log_and_follows_the_later_ones(deployment: Deployment) -> None:
    d, before = deployment, deployment.version
    caught_up = with_bids(before, list(range(10)), 50.0)
    d.deltas.write(before, 3, changes(caught_up, list(range(10)), 2, offset=30), source_ms=11)
    assert not d.follower.ready and "the server is starting" in d.follower.why_none()
    d.follower.step()
    assert "waiting for a published version" in d.follower.why_none()
    told: list[str] = []
    d.follower.before_flip = lambda _: told.append(d.follower.why_none())
    d.publish(3, before)
    d.follower.start()
    d.wait_live(3)
    assert [re.sub("-[0-9a-f]{8}", "", one) for one in told] == ["3.0 is being loaded"]
    d.assert_serves(caught_up, 3)
    assert all(w["item-features"] == 31 for w in d.engine.status().residents[0].watermark) and d.follower.last_error == ""
    assert d.engine.status().residents[0].tiers_by == "compiled"
    later = with_bids(caught_up, [20], 70.0)
    d.deltas.write(later, 3, changes(later, [20], 3, offset=40), source_ms=12)
    shard = partition_of(later.ids[20], SHARDS)
    wait_until(lambda: d.engine.status().residents[0].watermark[shard]["item-features"] == 41, WAIT_S, "the later change")
    d.assert_serves(later, 3)
    assert 12 in d.engine.status().residents[-1].source_ms.values()


def test_a_new_version_takes_over_a_rollback_to_the_former_one_needs_no_load_and_a_store_that_is_gone_is_named(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_log, "_LOOK_BACK_EVERY", 1)
    d, first, second = deployment, deployment.version, make_version(SPECS["full"], ITEMS, seed=2)
    d.publish(1, first)
    d.follower.start()
    d.wait_live(1)
    d.publish(2, second)
    d.wait_live(2)
    d.assert_serves(second, 2)
    changed = with_bids(first, [7], 90.0)
    d.deltas.write(first, 1, changes(changed, [7], 2))
    shard = partition_of(first.ids[7], SHARDS)

    def former_followed() -> bool:
        return any(r.token.version == 1 and r.watermark[shard]["item-features"] == 10 for r in d.engine.status().residents)

    wait_until(former_followed, WAIT_S, "the former version to follow its deltas")
    loads = d.follower.counters["loads"]
    decide(d.log, EntryKind.ROLLBACK, 1)
    d.wait_live(1)
    d.assert_serves(changed, 1)
    wait_until(lambda: d.follower.counters["flips"] == 3, WAIT_S, "the flip to be counted, which is after it")
    assert d.follower.counters["loads"] == loads
    away = d.folder.rename(d.folder.with_name("away"))
    d.wait_error("index_store_gone")
    d.assert_serves(changed, 1)
    away.rename(d.folder)
    wait_until(lambda: d.follower.last_error == "", WAIT_S, "the store to be seen again")


def test_a_third_version_reuses_the_former_arena_and_a_new_revision_is_not_loaded(deployment: Deployment) -> None:
    d = deployment
    d.follower.start()
    versions = {n: make_version(SPECS["full"], ITEMS, seed=n) for n in (1, 2, 3)}
    for number, version in versions.items():
        d.publish(number, version)
        d.wait_live(number)
    d.publish(3, versions[3], revision=1)
    folded = d.log.refresh().next_number
    wait_until(lambda: d.follower._log.state.next_number == folded, WAIT_S, "the revision to be read")
    d.assert_serves(versions[3], 3)
    assert sorted(r.token.version for r in d.engine.status().residents) == [2, 3]
    assert d.follower.counters["loads"] == 3 and str(d.engine.status().current).startswith("3.0-")


def test_a_version_that_gave_up_its_arena_is_freed_although_the_collector_hardly_ever_runs(deployment: Deployment) -> None:
    """The follower of its deltas and that one's thread held each other, and with them its weights."""
    d = deployment
    d.follower.start()
    with collector_paused():
        for number in (1, 2, 3):
            d.publish(number, make_version(SPECS["full"], ITEMS, seed=number))
            d.wait_live(number)
            if number == 1:
                first = [weakref.ref(held) for held in (d.follower._held[1], d.follower._held[1].deltas, d.engine.find_resident(1).scorer)]
        wait_until(lambda: not any(held() for held in first), WAIT_S, "version 1 to be freed")


def test_a_version_that_waits_for_an_arena_asks_the_broker_once_and_not_at_every_poll(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    d, asked, check = deployment, list[Any](), deltas.check_positions
    monkeypatch.setattr(deltas, "check_positions", lambda *of: asked.append(of) or check(*of))
    for number in (1, 2, 3):
        d.follower._grace_s = 60.0 if number == 3 else 0.0
        d.publish(number, make_version(SPECS["full"], ITEMS, seed=number))
        asked.clear()
        for _ in range(3):
            d.follower.step()
        expected = {1: (1, 1), 2: (2, 2), 3: (2, 1)}[number]
        assert (d.live, len(asked)) == expected, "after a load, and before it where a version is served"
    d.follower._grace_s = 0.0
    d.follower.step()
    assert (d.live, len(asked)) == (3, 2)


def test_a_rollback_to_a_former_version_that_lost_its_deltas_loads_it_again(deployment: Deployment) -> None:
    d, first = deployment, deployment.version
    d.follower.prepare()
    for number, version in ((1, first), (2, make_version(SPECS["full"], ITEMS, seed=2))):
        d.publish(number, version)
        d.follower.step()
    d.follower._held[1].resident.error = "its deltas cannot be followed"
    decide(d.log, EntryKind.ROLLBACK, 1)
    d.follower.step()
    d.assert_serves(first, 1)
    assert d.follower.last_error == "" and sorted(d.follower._held) == [1, 2]


def test_an_arena_from_before_a_freeze_is_never_continued_not_even_after_a_further_revision(deployment: Deployment) -> None:
    d, stale = deployment, deployment.version
    fresh = with_bids(stale, [3], 90.0)  # changed while no worker wrote changes for the version
    d.publish(1, stale)
    d.follower.prepare()
    d.follower.step()
    d.publish(2, make_version(SPECS["full"], ITEMS, seed=2))
    d.follower.step()
    assert d.live == 2
    decide(d.log, EntryKind.FREEZE, 1)
    d.publish(1, fresh, revision=1, cause=Cause.REVIVE, promote=False)
    d.publish(1, fresh, revision=2, promote=False)
    decide(d.log, EntryKind.PROMOTE, 1)
    d.follower.step()
    d.assert_serves(fresh, 1)


def test_a_served_version_that_was_frozen_and_is_back_is_loaded_anew(deployment: Deployment) -> None:
    d, stale = deployment, deployment.version
    fresh = with_bids(stale, [3], 90.0)
    d.publish(1, stale)
    d.follower.prepare()
    d.follower.step()
    d.publish(2, make_version(SPECS["full"], ITEMS, seed=2))  # the follower sees none of the following until the end
    decide(d.log, EntryKind.FREEZE, 1)
    d.publish(1, fresh, revision=1, cause=Cause.REVIVE, promote=False)
    decide(d.log, EntryKind.PROMOTE, 1)
    d.follower.step()
    d.assert_serves(fresh, 1)


def flip_byte(deployment: Deployment) -> None:
    sst = next(p for p in sorted(deployment.folder.rglob("*.sst")) if "versions/2/full" in str(p))
    raw = bytearray(sst.read_bytes())
    raw[len(raw) // 3] ^= 4
    sst.unlink()
    sst.write_bytes(raw)


def lose_checkpoint(deployment: Deployment) -> None:
    deployment.store.remove(checkpoint_path(deployment.log.refresh().versions[2].checkpoint_sha256))


@pytest.mark.parametrize(("damage", "code"), [(flip_byte, "bad_part_file"), (lose_checkpoint, "missing_file")])
def test_a_version_that_cannot_be_loaded_is_named_and_the_running_one_keeps_serving(
    deployment: Deployment, damage: Callable[[Deployment], None], code: str
) -> None:
    d, bad = deployment, make_version(SPECS["full"], ITEMS, seed=2)
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    d.publish(2, bad, promote=False)
    damage(d)
    decide(d.log, EntryKind.PROMOTE, 2)
    d.wait_error(code)
    d.assert_serves(d.version, 1)
    third = make_version(SPECS["full"], ITEMS, seed=3)
    d.publish(3, third)
    d.wait_live(3)
    d.assert_serves(third, 3)
    wait_until(lambda: d.follower.last_error == "", WAIT_S, "the error to be forgotten, which is after the flip")
    assert d.follower.counters["load_failures"] >= 1


@pytest.mark.parametrize("held", [False, True])
def test_a_server_that_starts_on_a_damaged_version_serves_the_backup_unless_an_operator_holds(deployment: Deployment, held: bool) -> None:
    d = deployment
    d.publish(1, d.version)
    d.publish(2, make_version(SPECS["full"], ITEMS, seed=2))
    flip_byte(d)
    if held:  # it may be a rollback from version 1
        decide(d.log, EntryKind.HOLD, -1)
    told, fall_back = list[str](), d.follower._fall_back
    d.follower._fall_back = lambda state: told.append(d.follower.last_error) or fall_back(state)  # type: ignore[func-returns-value,method-assign]
    d.follower.start()
    wait_until(lambda: d.follower.counters["load_failures"] > 0, WAIT_S, "the attempt to end")
    assert "bad_part_file" in told[0] and "bad_part_file" in d.follower.last_error, "told before the backup is loaded, and after"
    assert d.follower.ready is not held
    if not held:
        d.assert_serves(d.version, 1)


def test_a_load_that_ends_in_a_bug_is_named_serves_the_backup_and_is_tried_again(deployment: Deployment) -> None:
    d = deployment
    d.publish(1, d.version)
    second = make_version(SPECS["full"], ITEMS, seed=2)
    d.publish(2, second)
    admit, bugs = d.follower._admit, [ValueError("a bug"), MemoryError()]

    def admit_with_bugs(wanted: Any, *more: Any) -> Any:
        if wanted.version == 2 and bugs:
            raise bugs.pop(0)
        return admit(wanted, *more)

    d.follower._admit = admit_with_bugs  # type: ignore[method-assign]
    d.follower.start()
    wait_until(lambda: d.follower.counters["load_failures"] > 0, WAIT_S, "the attempt to end")
    assert "unexpected: ValueError('a bug')" in d.follower.last_error
    d.assert_serves(d.version, 1)
    wait_until(lambda: "no_memory: " in d.follower.last_error, WAIT_S, "the second attempt to end")
    wait_until(lambda: d.follower.last_error == "", WAIT_S, "the third attempt")
    d.assert_serves(second, 2)


def test_a_control_log_that_does_not_read_is_told_once_a_pause_and_not_at_every_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_index_store(str(tmp_path)).put_exclusive(control_path(0), b"no entry")
    told = list[dict[str, Any]]()
    monkeypatch.setattr(version_follower, "logger", SimpleNamespace(warning=lambda _, **fields: told.append(fields)))
    follower = VersionFollower(SimpleNamespace(), str(tmp_path), KafkaTopics("", ""))  # type: ignore[arg-type]
    for _ in range(5):
        follower._attempt(follower.step)
    assert len(told) == 1 and "bad_control_entry" in told[0]["error"] and follower.counters["load_failures"] == 1


def test_a_version_whose_rows_have_another_kind_of_ids_than_its_model_is_refused_with_both_kinds(tmp_path: Path) -> None:
    spec = SPECS["full"]
    follower = VersionFollower(SimpleNamespace(), str(tmp_path), KafkaTopics("", ""))  # type: ignore[arg-type]
    follower._last_checkpoint = SimpleNamespace(info=SimpleNamespace(sha256="ab"), spec=spec)  # type: ignore[assignment]
    rows = dataclasses.replace(row_layout(spec), id_kind=IdKind.TEXT)
    with pytest.raises(Incompatible, match="version 3 needs int64 ids, its rows have text; leave it with `aif index rollback`"):
        follower._checkpoint(SimpleNamespace(checkpoint_sha256="ab", version=3, layout=rows))  # type: ignore[arg-type]


def test_a_version_too_large_for_its_arena_gets_a_larger_one(deployment: Deployment) -> None:
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    d.assert_serves(d.version, 1)
    d.publish(3, make_version(SPECS["full"], 9_000, seed=3))
    d.wait_live(3)
    assert d.rows == 9_000


def test_a_catalogue_that_outgrows_its_arena_is_served_whole_from_a_larger_one(deployment: Deployment) -> None:
    """The arena of 120 items has room for 4,216. Three times as many come; some are deleted again before they have room."""
    d, capacity = deployment, len(deployment.version.ids) + NEW_ROWS_MIN
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    assert d.engine.status().residents[0].capacity >= capacity
    new = [item_id(d.version.spec.schema.id_kind, 1_000 + at) for at in range(3 * capacity)]
    for at in range(0, len(new), 2_000):
        d.deltas.write(d.version, 1, [(one, stamp(1, 10 + at), d.version.rows[0]) for one in new[at : at + 2_000]])
    d.deltas.write(d.version, 1, [(one, stamp(2, 10 + len(new), dead=1), None) for one in new[-500:]])
    wait_until(lambda: d.rows == ITEMS + len(new) - 500, WAIT_S, f"all rows, not {d.rows}")
    wait_until(lambda: not d.follower.last_error, WAIT_S, "the error to be over")
    (report,) = d.engine.status().residents
    assert report.not_servable == 0 and d.follower.counters["load_failures"] == 0
    assert d.rank(d.version).unknown_count == 0
    bid = with_bids(d.version, [3], 50.0)
    d.deltas.write(bid, 1, changes(bid, [3], 3, offset=20 + len(new)))
    wait_until(lambda: d.rank(d.version, 1).ids == [d.version.ids[3]], WAIT_S, "a change of the copy that is served now")


@pytest.mark.parametrize("remedy", ["`aif index revise 2`", "rollback"])
def test_a_version_whose_position_is_outside_the_retained_deltas_is_left_or_loads_from_its_next_revision(
    deployment: Deployment, remedy: str
) -> None:
    """`aif index revise` wants the revision; what its workers publish then is published here."""
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    second = make_version(SPECS["full"], ITEMS, seed=2)
    d.publish(2, second, positions=(0, 99))
    d.wait_error("delta_position_gone")
    d.assert_serves(d.version, 1)
    if remedy == "rollback":
        decide(d.log, EntryKind.ROLLBACK, 1)
        wait_until(lambda: d.follower.last_error == "", WAIT_S, "the server to be content")
        d.assert_serves(d.version, 1)
        return
    assert remedy in d.follower.last_error
    d.publish(2, second, revision=1)
    d.wait_live(2)
    d.assert_serves(second, 2)


def test_deltas_of_a_topic_that_was_made_again_are_never_taken_nor_is_a_version_loaded_with_them(deployment: Deployment) -> None:
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    delete_topics(d.kafka.bootstrap, [d.kafka.topic_prefix + INDEX_DELTAS])
    again = DeltaWriter(d.kafka.bootstrap, d.kafka.topic_prefix)
    again.write(with_bids(d.version, [3], 60.0), 1, changes(with_bids(d.version, [3], 60.0), [3], 5))
    d.wait_error("other_topic")
    d.publish(2, make_version(SPECS["full"], ITEMS, seed=2))
    d.wait_error("other_topic")
    d.assert_serves(d.version, 1)


def test_a_follower_that_is_closed_does_not_wait_for_a_load_that_does_not_end(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = deployment
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    monkeypatch.setattr(version_follower, "CLOSE_S_MAX", 0.1)
    loader = d.follower._loader._child
    assert loader is not None
    os.kill(loader.pid, signal.SIGSTOP)
    try:
        d.publish(2, make_version(SPECS["full"], ITEMS, seed=2))
        wait_until(lambda: d.follower.counters["loads"] == 2, WAIT_S, "the load to begin")
        closing = threading.Thread(target=d.follower.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
        wait_until(lambda: not d.follower._thread.is_alive(), WAIT_S, "its thread to end with the loader")
        assert not loader.alive()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(loader.pid, signal.SIGCONT)


def test_a_scorer_that_gives_numbers_that_are_not_finite_never_goes_live(deployment: Deployment) -> None:
    d, bad = deployment, make_version(SPECS["full"], ITEMS, seed=2)
    d.publish(1, d.version)
    d.follower.start()
    d.wait_live(1)
    bad.rows["bid"] = np.nan
    d.publish(2, bad)
    d.wait_error("bad_canary")
    d.assert_serves(d.version, 1)
    assert [r.token.version for r in d.engine.status().residents] == [1]
