"""What a server says about the age of its answers."""

from types import SimpleNamespace

from serving.status_view import STALE, find_stale, readiness


def view(*, rows: str = "", users: str = "", ready: bool = True, silent_s: float = 0.0, statistics: str = "") -> dict[str, str]:
    follower = SimpleNamespace(behind=users, ready=ready, silent_s=lambda: silent_s)
    return find_stale(SimpleNamespace(behind=rows), follower, 30.0, statistics)  # type: ignore[arg-type]


def test_a_server_that_is_cut_off_from_the_broker_says_so_beyond_the_limit() -> None:
    assert view(silent_s=29.0) == {}
    assert "has not answered for 31 s, expected at most 30 s" in view(silent_s=31.0)["broker_silent"]


def test_rows_and_users_that_are_behind_are_named_also_before_the_server_is_ready() -> None:
    assert view(rows="deltas are gone") == {"rows_behind": "deltas are gone"}
    assert view(users="60 s old") == {"users_behind": "60 s old"} and view(users="reading", ready=False) == {"users_behind": "reading"}
    assert set(view(rows="a", users="b", silent_s=99.0, statistics="c")) == set(STALE)
    assert find_stale(SimpleNamespace(behind=""), None, 30.0) == {}  # type: ignore[arg-type]


def test_a_ready_server_whose_disk_takes_no_changes_of_users_says_so_in_its_readiness() -> None:
    versions = SimpleNamespace(ready=True, why_incomplete=lambda: "")
    users = SimpleNamespace(ready=True, waits_for_disk=True, last_error="disk_full: write in /data: no space left on device")
    health = SimpleNamespace(why_not=lambda: "")
    is_ready, detail = readiness(versions, users, health, False, False)  # type: ignore[arg-type]
    assert is_ready and detail == f"the view of users takes no changes: {users.last_error}"
    users.waits_for_disk = False
    assert readiness(versions, users, health, False, False) == (True, "")  # type: ignore[arg-type]
    assert readiness(versions, users, health, False, True) == (False, "the ranker of the second stage is being opened")  # type: ignore[arg-type]
