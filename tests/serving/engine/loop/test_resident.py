"""A version's changes: which changes an owner of a shard that is behind may still make."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from schemas.ids import Id, IdKind, encode_index_key
from schemas.index.layout import Column, RowLayout, encode_increment
from schemas.token import VersionToken
from serving.engine.devices.scorer import Scorer
from serving.engine.loop.resident import ChangeBatch, Resident, apply_changes, rank
from serving.engine.tables.changes import encode_ids
from serving.engine.work import RankWork, UserState
from tests.serving.engine.samples import changes_of_pairs, empty_tables, item_id, stamp

SCORER = cast(Scorer, SimpleNamespace(on_applied=lambda applied: None))


class Shards:
    """A resident of two shards that starts from full parts at item-features 100, and the records that owners send it."""

    def __init__(self, kind: IdKind) -> None:
        self.kind, self.layout, self.position = kind, RowLayout((Column("category", "<i4", 1),), kind), 0
        watermark = ({"item-features": 100, "new-items": 50}, {"item-features": 0, "new-items": 0})
        self.resident = Resident(VersionToken(3, 0, "00000000"), empty_tables(self.layout, 0, 40), SCORER, watermark, {0: 0, 1: 0})

    def send(self, next_offsets: tuple[int, int], *changes: tuple[Id, int, bool], partition: int = 0, embedding: int = 0) -> None:
        """One record; changes = (id, features offset, is a delete)."""
        row = np.zeros((), self.layout.dtype)
        pairs = [
            (encode_index_key(i), encode_increment(stamp(at, at, embedding, int(dead)), None if dead else row)) for i, at, dead in changes
        ]
        self.position += 1
        offsets = {"item-features": next_offsets[0], "new-items": next_offsets[1], "index-deltas": self.position}
        apply_changes(self.resident, ChangeBatch(3, partition, changes_of_pairs(self.layout, pairs), self.position, offsets, 1))

    def has(self, item: Id) -> bool:
        return bool(self.resident.tables.find(encode_ids([item], self.kind))[0] >= 0)


@pytest.fixture(params=list(IdKind))
def shards(request: pytest.FixtureRequest) -> Shards:
    return Shards(request.param)


def ids(shards: Shards, numbers: Sequence[int]) -> list[Id]:
    return [item_id(shards.kind, number) for number in numbers]


def test_items_deleted_before_the_version_was_built_stay_deleted_when_an_owner_that_is_behind_catches_up(shards: Shards) -> None:
    """Full parts have no trace of them. The new owner sends their older rows, then the delete, which its predecessor has sent before."""
    deleted, created, other = ids(shards, range(3))
    shards.send((60, 40), (deleted, 59, False))
    assert not shards.has(deleted) and shards.resident.watermark[0]["item-features"] == 100
    shards.send((60, 55), (deleted, 59, False), embedding=54)
    assert not shards.has(deleted), "a newer embedding does not bring it back either"
    shards.send((61, 40), (deleted, 60, True))
    shards.send((9, 0), (other, 8, False), partition=1)
    assert shards.has(other), "the other shard has a watermark of its own"
    shards.send((121, 60), (created, 120, False), (deleted, 119, False))
    assert shards.has(created) and shards.has(deleted), "a later update of its features does"


def test_new_items_in_the_first_record_of_a_batch_that_begins_below_the_watermark_are_taken(shards: Shards) -> None:
    """All but the last record of a batch name the offsets before the batch. The batch of an owner that catches up may reach beyond the watermark."""
    old, new = ids(shards, range(2))
    shards.send((60, 40), (old, 99, False), (new, 105, False))
    assert shards.has(new) and not shards.has(old)


def test_deletes_are_forgotten_once_the_watermark_covers_them_and_remembered_until_then(shards: Shards) -> None:
    item, other = ids(shards, range(2))
    shards.send((100, 50), (item, 105, False), (item, 110, True))
    shards.send((100, 50), (item, 107, False))
    assert not shards.has(item) and shards.resident.tables.used == 1, "the watermark does not cover the delete: its order decides"
    shards.send((111, 50))
    shards.send((80, 50), (item, 107, False))
    assert not shards.has(item) and shards.resident.tables.used == 0, "the watermark decides"
    for turn in range(5_000):
        shards.send((200 + turn, 60), (other, 199 + turn, turn % 2 == 1), (ids(shards, [turn + 2])[0], 199 + turn, True))
    assert shards.resident.tables.used <= 2 and shards.resident.tables.not_servable == 0


def test_the_processor_time_of_a_ranking_counts_its_work_and_none_of_its_waits(shards: Shards) -> None:
    """By it a version is rolled back. Waits rise with the load of neighbours on the machine, for which no version is to blame."""

    def ranked_ms(score: Callable[[], None]) -> float:
        def scored(state: UserState, row_C: np.ndarray, context: object) -> tuple[np.ndarray, np.ndarray]:
            score()
            return np.zeros(len(row_C), np.float32), np.zeros((len(row_C), 1), np.float32)

        shards.resident.scorer = cast(Scorer, SimpleNamespace(score=scored))
        return rank(shards.resident, cast(UserState, None), RankWork(ids(shards, range(3)), 1)).processor_ms

    def work() -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    assert ranked_ms(lambda: time.sleep(0.2)) < 100
    assert ranked_ms(work) >= 200
