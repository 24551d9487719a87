"""The crash bench: its plan, the count by which it judges, and a short campaign against real processes."""

import json

import pytest

from infra.failpoints import FAILPOINTS
from infra.kafka.reader import SourceRecord
from lab.system.crash import _WEIGHTS, AWAY, DAMAGE, FAILPOINT, FOREIGN, STORM, measure_crash, plan_kills
from lab.system.crash_fold import count_topic
from schemas.topics import ITEM_FEATURES, NEW_ITEMS


def test_the_same_seed_plans_the_same_kills_and_a_campaign_has_every_kind_and_every_failpoint() -> None:
    plans = plan_kills(400, 1)
    assert plans == plan_kills(400, 1) != plan_kills(400, 2)
    assert {plan.kind for plan in plan_kills(len(_WEIGHTS), 3)} == set(_WEIGHTS)
    assert {plan.name for plan in plans if plan.kind == FAILPOINT} == FAILPOINTS


def record(topic: str, offset: int, value: object) -> SourceRecord:
    return SourceRecord(topic, 0, offset, b"", value if isinstance(value, bytes) else json.dumps(value).encode())


def test_the_count_is_that_of_a_plain_fold() -> None:
    updates = [{"item_id": 0, "version": 5}, {"item_id": 0, "version": 4}, {"item_id": 2, "version": -1}, {"item_id": 0, "version": 5}]
    records = [record(ITEM_FEATURES, 0, b"\xff"), record(ITEM_FEATURES, 1, {"schema": 1, "updates": updates})]
    judged = count_topic(ITEM_FEATURES, records)
    assert judged.counts[0] == {"consumed": 5, "applied": 2, "superseded": 1, "dead_lettered": 2}
    assert judged.dead_letters == {(ITEM_FEATURES, 0, 0, 0), (ITEM_FEATURES, 0, 1, 2)}
    again = [record(NEW_ITEMS, n, {"schema": 1, "updates": [{"item_id": 0, "embedding": [1.0]}]}) for n in range(3)]
    assert count_topic(NEW_ITEMS, again).counts[0] == {"consumed": 3, "applied": 3}


@pytest.mark.timeout(900)
@pytest.mark.campaign
@pytest.mark.parametrize("kind", [DAMAGE, AWAY, FOREIGN, STORM])
def test_a_fault_of_each_kind_loses_nothing_and_needs_no_hand(kind: str) -> None:
    figures = measure_crash(kills=2, seed=1, items=300, updates_per_s=100.0, kinds={kind: 1})
    assert figures.value(f"kills_{kind}") == 2
    assert (figures.value("lost"), figures.value("doubled"), figures.value("digest_equal")) == (0, 0, 1)
    assert (figures.value("dead_letters_missing"), figures.value("dead_letters_wrong")) == (0, 0)


@pytest.mark.timeout(300)
@pytest.mark.campaign
def test_a_short_campaign_loses_nothing_and_doubles_nothing() -> None:
    figures = measure_crash(kills=2, seed=1, items=300, updates_per_s=100.0)
    assert figures.value("kills") == 2 and figures.value("kills_failpoint") == 1
    assert figures.value("acknowledged") > 100  # type: ignore[operator]
    assert (figures.value("lost"), figures.value("doubled"), figures.value("digest_equal")) == (0, 0, 1)
    assert (figures.value("dead_letters_missing"), figures.value("dead_letters_wrong")) == (0, 0)
