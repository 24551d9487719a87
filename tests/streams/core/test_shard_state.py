"""A shard's own state as bytes."""

from collections.abc import Callable

import pytest

from schemas.errors import Corrupted
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.index.manifest import Part, PartFile
from streams.core.shard_state import (
    ShardState,
    ShardVersion,
    TopicCounts,
    decode_shard_state,
    decode_shard_version,
    encode_identity,
    encode_shard_state,
    encode_shard_version,
    fold_work,
)


def test_state_and_versions_come_back_as_they_were() -> None:
    state = ShardState(
        {"item-features": 3, "new-items": 9},
        {"item-features": TopicCounts(6, 3, 2, 1), "new-items": TopicCounts()},
        5,
        8,
        1_700,
        {"4": {"rows_encoded": 3}},
    )
    assert decode_shard_state(encode_shard_state(state)) == state
    part = Part("versions/4/full/00000-ab", (PartFile("1.sst", 10, "0" * 64),), 7)
    version = ShardVersion(4, "c" * 64, "torch=2", True, {"item-features": 1}, {"item-features": 0}, part, 2)
    assert decode_shard_version(encode_shard_version(version)) == version
    assert decode_shard_version(encode_shard_version(ShardVersion(4, "c", "f"))) == ShardVersion(4, "c", "f")


def test_work_adds_up_by_version_and_cause_and_is_forgotten_with_the_version() -> None:
    state = fold_work(ShardState(), {4: {"rows_encoded": 2}, 5: {"rows_encoded": 1}})
    state = fold_work(state, {5: {"skipped_identical": 7, "rows_encoded": 1}, 6: {}})
    assert state.work == {"5": {"rows_encoded": 2, "skipped_identical": 7}, "6": {}}


def test_a_state_of_before_there_was_work_to_count_still_reads() -> None:
    raw = encode_shard_state(ShardState()).replace(b',"work":{}', b"")
    assert b"work" not in raw and decode_shard_state(raw) == ShardState()


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"counters": 1}', b'{"counters": {}, "surprise": 1}', b"\xff"])
def test_a_damaged_state_is_named(raw: bytes) -> None:
    with pytest.raises(Corrupted, match="bad_shard_state"):
        decode_shard_state(raw)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"full": 1}', b'{"full": null, "surprise": 1}'])
def test_a_damaged_version_entry_is_named(raw: bytes) -> None:
    with pytest.raises(Corrupted, match="bad_shard_version"):
        decode_shard_version(raw)


def test_the_identity_changes_with_everything_that_makes_it_another_shard() -> None:
    topics = {"item-features": "a.item-features", "new-items": "a.new-items"}
    base = Init(4, 4, IdKind.INT64, topics, {"item-features": "X"})
    others = [
        encode_identity(1, base),
        encode_identity(0, Init(5, 4, IdKind.INT64, topics, {"item-features": "X"})),
        encode_identity(0, Init(4, 4, IdKind.TEXT, topics, {"item-features": "X"})),
        encode_identity(0, Init(4, 4, IdKind.INT64, topics, {"item-features": "Y"})),
        encode_identity(0, Init(4, 4, IdKind.INT64, {**topics, "new-items": "b.new-items"}, {"item-features": "X"})),
    ]
    assert len({encode_identity(0, base), *others}) == 6


@pytest.mark.parametrize("decode", [decode_shard_state, decode_shard_version])
def test_nothing_but_brackets_is_corrupted(decode: Callable[[bytes], object]) -> None:
    with pytest.raises(Corrupted, match="does not read"):
        decode(b"[" * 100_000)
