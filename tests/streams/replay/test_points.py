"""What people write for a point of a log."""

from pathlib import Path

import pytest

from schemas.errors import Corrupted, Misconfigured
from schemas.topics import ITEM_FEATURES, NEW_ITEMS
from streams.replay.points import AtOffset, AtTime, AtVector, Named, Point, ReplayPlan, parse_point
from streams.replay.replay import keep_plan, read_plan

POINTS = {
    "live": Named("live"),
    "4.1": Named("4.1"),
    "4.1-0123abcd": Named("4.1-0123abcd"),
    "17": AtOffset(17),
    "2026-01-31": AtTime(1_769_817_600_000),
    "2026-01-31T12:00+01:00": AtTime(1_769_857_200_000),
    "1969-12-31T23:59:59.999": AtTime(0),
    "0001-01-01": AtTime(0),
    "item-features=5,6;new-items=1,0": AtVector({ITEM_FEATURES: (5, 6), NEW_ITEMS: (1, 0)}),
}


@pytest.mark.parametrize(("text", "point"), POINTS.items())
def test_a_point_is_read(text: str, point: Point) -> None:
    assert parse_point(text, ("live",), seals=True) == point


@pytest.mark.parametrize("text", ["", "newest", "-3", "item-features=5", "item-features=5;other=3", "4.1.2", "2026-13-01"])
def test_what_is_no_point_is_refused_with_what_is_possible(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"replay_point.*earliest"):
        parse_point(text, ("earliest",), seals=True)


@pytest.mark.parametrize("name", ["file/below", "x" * 300])
def test_a_directory_that_can_be_none_is_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match="replay_directory"):
        _ = read_plan(tmp_path / name, {}) or keep_plan(tmp_path / name, ReplayPlan(()), {})


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"shards": [{}]}', b"[" * 100_000])
def test_a_damaged_plan_is_named_with_what_to_do(damage: bytes, tmp_path: Path) -> None:
    keep_plan(tmp_path, ReplayPlan(()), {"to": "live"})
    (plan,) = tmp_path.iterdir()
    plan.write_bytes(damage)
    with pytest.raises(Corrupted, match=r"bad_replay_plan: .*does not read: .*; give a new directory"):
        read_plan(tmp_path, {"to": "live"})
