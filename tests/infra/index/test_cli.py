"""`aif index`: what it prints is the fold, what it decides is one entry."""

import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.index.cli import index_app
from infra.index.control_log import ControlLog
from infra.index.store import IndexStore, open_index_store
from infra.processes import free_ports
from schemas.errors import AifError
from schemas.index.control import Entry, decode_entry
from schemas.index.lifecycle import FINAL, Cause, EntryKind, State, next_state
from schemas.index.manifest import manifest_path
from tests.infra.aif_command import run_aif
from tests.infra.index_fixture import publish_version


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IndexStore:
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path / "store"))
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", f"127.0.0.1:{free_ports(1)[0]}")
    return open_index_store(str(tmp_path / "store"))


@pytest.mark.parametrize(
    "command",
    [
        "index list",
        "index show",
        "index verify",
        "index diff",
        "index rollback 1",
        "index drop 1",
        "model show",
        "query 1",
        "verify-answers",
        "replay",
        "allocate show",
    ],
)
def test_a_command_that_reads_makes_no_store_and_says_where_it_looked(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIF_INDEX__STORE", str(tmp_path / "mistyped"))
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", f"127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(AifError, match=f"index_store_missing: there is no index store at {tmp_path / 'mistyped'}.*AIF_INDEX__STORE"):
        run_aif(*command.split())
    assert list(tmp_path.iterdir()) == []


def test_list_show_and_verify_describe_the_served_version(store: IndexStore) -> None:
    manifest = publish_version(store)
    (row,) = run_aif("index", "list")["versions"]
    assert (row["version"], row["state"], row["mark"]) == (0, "live", "served")
    shown = run_aif("index", "show")
    assert (shown["rows"], shown["digest"], len(shown["shards"])) == (manifest.rows, manifest.digest, 2)
    assert run_aif("index", "verify", "0")["faults"] == []
    assert shown["work_done"] == {"build_computed": 6, "rows_encoded": 8}
    assert shown["work_skipped"] == {"build_taken_over": 4, "skipped_identical": 10}


def test_show_says_what_will_be_removed_and_when(store: IndexStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_version(store)
    assert run_aif("index", "show", "0")["removals"] == []
    store.put_bytes("versions/0/full/00001-0123456789ab/CURRENT", b"left by a build")
    (row,) = run_aif("index", "show", "0")["removals"]
    assert (row["folder"], row["files"], row["bytes"]) == ("versions/0/full/00001-0123456789ab", 1, 15)
    assert 23 * 3600 < row["in_s"] <= 24 * 3600
    for _ in range(3):
        publish_version(store)
    monkeypatch.setenv("AIF_INDEX__KEEP_VERSIONS", "2")
    assert "to be dropped" in run_aif("index", "show", "0")["removals"][0]["why"]


def test_verify_names_what_is_wrong_and_fails(store: IndexStore) -> None:
    manifest = publish_version(store)
    path = f"{manifest.seals[1].full.directory}/{manifest.seals[1].full.files[0].name}"
    store.remove(path)
    faults = run_aif("index", "verify", exit_code=1)["faults"]
    assert any(path in fault for fault in faults)


def test_diff_compares_the_two_newest_versions_unless_others_are_named(store: IndexStore) -> None:
    publish_version(store)
    with pytest.raises(AifError, match="no_two_versions"):
        run_aif("index", "diff")
    publish_version(store)
    publish_version(store)
    sides = run_aif("index", "diff")["sides"]
    assert [side["side"] for side in sides] == ["1", "2"]


def test_decisions_change_what_is_served(store: IndexStore) -> None:
    publish_version(store)
    publish_version(store)
    assert run_aif("index", "list")["versions"][0]["mark"] == "served"
    assert run_aif("index", "pin", "0")["served"].startswith("0.0-")
    assert run_aif("index", "unpin")["served"].startswith("1.0-")
    assert run_aif("index", "hold")["held"] is True
    assert run_aif("index", "release")["held"] is False
    back = run_aif("index", "rollback", "--reason", "worse clicks")
    assert (back["live"], back["backup"], back["held"]) == (0, 1, True)
    with pytest.raises(AifError, match="rolled back from: worse clicks"):
        run_aif("index", "rollback")  # again by mistake would bring back what was left
    assert run_aif("index", "promote", "1")["live"] == 1


def test_a_version_that_its_canary_withholds_says_why_and_is_approved(store: IndexStore) -> None:
    publish_version(store)
    publish_version(store, promote=False)
    verdict = Entry(EntryKind.WITHHOLD, 0, "worker-7", 1, reason="canary: its scores are far away")
    ControlLog(store).append(lambda _: verdict)
    row = run_aif("index", "list")["versions"][0]
    assert (row["mark"], row["reason"], row["by"]) == ("withheld", "canary: its scores are far away", "worker-7")
    assert run_aif("index", "show", "1")["withheld"] is True
    assert run_aif("index", "approve", "1", "--reason", "looked at it")["kind"] == "approve"
    row = run_aif("index", "list")["versions"][0]
    assert (row["mark"], row["reason"], row["by"]) == ("", "looked at it", "aif index")


def test_a_rollback_says_why_and_by_whom_at_both_versions(store: IndexStore) -> None:
    for _ in range(2):
        publish_version(store)
    ControlLog(store).append(lambda _: Entry(EntryKind.ROLLBACK, 0, "worker-7", 0, reason="2 of 3 servers report faults"))
    left, back = run_aif("index", "list")["versions"]
    assert (left["mark"], left["reason"], left["by"]) == ("turned away", "rolled back from: 2 of 3 servers report faults", "worker-7")
    assert (back["state"], back["reason"], back["by"]) == ("live", "2 of 3 servers report faults", "worker-7")
    assert run_aif("status", exit_code=1)["held_why"] == "rollback by worker-7: 2 of 3 servers report faults"


def test_a_frozen_version_is_revived_before_it_is_promoted_and_can_be_dropped(store: IndexStore) -> None:
    for _ in range(3):
        publish_version(store)
    assert run_aif("index", "show", "0")["state"] == "frozen"
    assert run_aif("index", "promote", "0")["kind"] == "want"
    assert run_aif("index", "show", "0")["wanted_revision"] == 1
    assert run_aif("index", "drop", "0", "--reason", "too old")["kind"] == "drop"
    assert (run_aif("index", "show", "0")["reason"], run_aif("index", "list")["versions"][-1]["by"]) == ("too old", "aif index")
    assert (shown := run_aif("index", "show", "0"))["state"] == "removed" and shown["rows"] > 0
    store.remove(manifest_path(0, 0))
    assert (shown := run_aif("index", "show", "0"))["state"] == "removed" and "rows" not in shown
    for arguments in (("verify", "0"), ("diff", "0", "1")):
        with pytest.raises(AifError, match="missing_file: version 0 was dropped and its files are removed"):
            run_aif("index", *arguments)


def test_a_version_that_builds_can_be_aborted_and_a_published_one_cannot(store: IndexStore) -> None:
    publish_version(store, promote=False)
    ControlLog(store).append(lambda _: Entry(EntryKind.WANT, 0, "worker-7", 1, cause=Cause.CHECKPOINT))
    assert run_aif("index", "abort", "1", "--reason", "too large")["kind"] == "abort"
    assert [(row["version"], row["state"], row["reason"]) for row in run_aif("index", "list")["versions"]] == [
        (1, "aborted", "too large"),
        (0, "published", ""),
    ]
    with pytest.raises(AifError, match="refused_transition"):
        run_aif("index", "abort", "0")


@pytest.mark.parametrize("arguments", [("promote", "9"), ("show", "9"), ("verify", "9"), ("rollback",), ("drop", "0")])
def test_what_is_not_possible_is_refused_with_what_is(store: IndexStore, arguments: tuple[str, ...]) -> None:
    publish_version(store)
    before = store.list("control/")
    with pytest.raises(AifError) as raised:
        run_aif("index", *arguments)
    assert raised.value.code in {"unknown_version", "no_backup", "refused_transition"}
    assert raised.value.code == "refused_transition" or "`aif index " in raised.value.message
    assert store.list("control/") == before


@pytest.mark.parametrize("state", [state for state in State if state is not State.NONE])
def test_a_refusal_names_commands_that_there_are(state: State) -> None:
    with pytest.raises(AifError, match="refused_transition") as raised:
        next_state(state, EntryKind.WITHHOLD if state is not State.PUBLISHED else EntryKind.ABORT)
    named = re.findall(r"`(?:aif (?:index )?)?([a-z]+)`", raised.value.message.partition("; ")[2] or raised.value.message)
    assert set(named) <= {command.name or command.callback.__name__ for command in index_app.registered_commands if command.callback} | {
        "status"
    }
    assert named or state in FINAL


def test_a_frozen_version_cannot_be_pinned_and_is_told_how_it_can(store: IndexStore) -> None:
    for _ in range(3):
        publish_version(store)
    with pytest.raises(AifError, match="`aif index promote` lets them catch up and makes it live, then it can be pinned"):
        run_aif("index", "pin", "0")


def test_status_says_what_it_can_though_the_broker_is_away(store: IndexStore) -> None:
    publish_version(store)
    data = run_aif("status", exit_code=1)
    assert data["live"] == 0
    assert data["topics"] == []
    assert "kafka_unreachable" in data["broker"]


def test_status_of_an_empty_store_says_that_nothing_is_served(store: IndexStore) -> None:
    assert run_aif("status", exit_code=1)["served"] == "nothing"


@pytest.mark.parametrize("arguments", [("diff", "0", "0"), ("show",), ("list", "--all")])
def test_people_see_what_has_parts_as_tables_and_no_python(store: IndexStore, arguments: tuple[str, ...]) -> None:
    empty = CliRunner().invoke(build_app(), ["index", "list"])
    assert (empty.stdout, empty.stderr) == ("", "no versions\n")
    publish_version(store)
    shown = CliRunner().invoke(build_app(), ["index", *arguments]).stdout
    assert "0.0" in shown and "{'" not in shown and "[{" not in shown


def test_the_list_of_versions_is_short_unless_all_are_asked_for(store: IndexStore) -> None:
    for _ in range(12):
        publish_version(store)
    short, every = (CliRunner().invoke(build_app(), ["index", "list", *more]) for more in ((), ("--all",)))
    assert len(short.stdout.splitlines()) == 11 and short.stderr.startswith("2 older versions")
    assert len(every.stdout.splitlines()) == 13 and "token" in every.stdout and "token" not in short.stdout
    assert "label" in short.stdout, "by which an operator finds an adopted replay"


@pytest.mark.parametrize("off_h", [-1.1, 1.1])
def test_a_decision_is_dated_by_the_stores_clock_and_not_by_the_operators(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch, off_h: float
) -> None:
    """Another machine counts from it how long the files of a version stay after its end."""
    publish_version(store)
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(off_h * 3.6e12))
    entry = run_aif("index", "hold")["entry"]
    assert abs(decode_entry(store.get(f"control/{entry}")).at_ms - real_ns() // 1_000_000) < 360_000
