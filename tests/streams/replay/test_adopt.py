"""A replay adopted as a version: its rows are taken over where nothing changed, everything newer is computed, and no replay can do harm."""

import json
from typing import Any

import pytest

from schemas.errors import Corrupted, Misconfigured
from schemas.index.control import Entry
from schemas.index.lifecycle import Cause, EntryKind, State
from schemas.index.manifest import checkpoint_path
from schemas.model.item_network import encoder_fingerprint
from streams.builders.full_part import encode_blocks
from streams.replay.adopted_parts import ReplayedParts, decode_replayed, encode_replayed, find_replayed, replayed_path
from streams.replay.replayed_rows import Adoption
from streams.shard.shard_reader import open_shard_reader
from tests.streams.shard_world import delete, embed, upsert
from tests.streams.version_world import SCHEMA, Worker, World, checkpoint_bytes, encoder_of


class NoPublisher:
    """Takes the record; the test writes the `want`."""

    def publish_checkpoint(self, record: Any) -> Any:
        return self

    def model_copy(self, update: Any) -> Any:
        return update

    def result(self, _: float) -> Any:
        return self

    offset = 7


@pytest.fixture
def worker(world: World) -> Worker:
    """With a catalogue of 200 items."""
    world.publish_items(*(upsert(i, 1, category=i % 7, price=1.0 + i) for i in range(200)))
    world.publish_embeddings(*(embed(i, *range(i, i + 6)) for i in range(0, 200, 2)))
    worker = Worker(world)
    worker.settle()
    return worker


def adopt(world: World, worker: Worker) -> None:
    """The rows as they are now, under the label of version 7; then the catalogue goes on."""
    task = worker.tasks[0]
    task.shard.create_checkpoint(world.folder / "replayed")
    adoption = Adoption(world.store, "backfill", encoder_of(7))
    with open_shard_reader(world.folder / "replayed") as reader:
        adoption.keep(0, encode_blocks(encoder_of(7), reader.scan_blocks()), reader.next_offsets)
    assert adoption.publish(NoPublisher(), NoPublisher()) == 7  # type: ignore[arg-type]
    world.publish_items(*(upsert(i, 2, price=0.5) for i in range(10)), delete(20, 2), upsert(900, 1, price=2.0))
    world.publish_embeddings(embed(31, *range(6)))
    task.consume()


def want(world: World, fingerprint: str = "") -> None:
    world.want(6, 1)  # puts the other checkpoint; this one is put by the next line
    world.store.put_bytes(checkpoint_path(encoder_of(7).checkpoint_sha256), checkpoint_bytes())
    entry = Entry(
        EntryKind.WANT,
        0,
        version=7,
        cause=Cause.ADOPT,
        checkpoint_sha256=encoder_of(7).checkpoint_sha256,
        model_id=encoder_of(7).model_id,
        feature_schema=SCHEMA.fingerprint,
        encoder_fingerprint=fingerprint or encoder_fingerprint(),
        label="backfill",
    )
    world.write(entry)


def reused(worker: Worker) -> str:
    return next(e.reason for e in worker.events if e.kind == "built" and e.version == 7)


def test_an_adopted_version_has_everything_newer_and_computes_only_that(world: World, worker: Worker) -> None:
    adopt(world, worker)
    want(world)
    for n in range(6):
        world.publish_items(upsert(50 + n, 3, price=9.0))
        worker.step()
    worker.settle()
    assert world.state.versions[7].state is State.LIVE
    assert world.reader(7) == world.oracle(7)
    assert 150 < int(reused(worker).split()[0]) < 200


def test_the_rows_of_another_encoder_are_not_taken(world: World, worker: Worker) -> None:
    adopt(world, worker)
    found = find_replayed(world.store, "backfill", encoder_of(7).checkpoint_sha256)
    assert found is not None and find_replayed(world.store, "backfill", "0" * 64) is None
    world.store.remove(replayed_path("backfill"))
    other = ReplayedParts("backfill", found.checkpoint_sha256, "another machine", found.parts, found.source_offsets)
    world.store.put_bytes(replayed_path("backfill"), encode_replayed(other))
    want(world)
    worker.settle()
    assert world.reader(7) == world.oracle(7) and reused(worker) == ""


def test_a_replay_that_is_gone_only_costs_computing(world: World, worker: Worker) -> None:
    adopt(world, worker)
    for path in world.store.list("replays/"):
        if not path.endswith(".json"):
            world.store.remove(path)
    want(world)
    worker.settle()
    assert world.reader(7) == world.oracle(7) and reused(worker) == ""


@pytest.mark.parametrize("label", ["", "../x", "a b", ".hidden", "x" * 65])
def test_a_label_that_cannot_name_a_folder_is_refused(label: str, world: World) -> None:
    with pytest.raises(Misconfigured, match="replay_label"):
        Adoption(world.store, label, encoder_of(7))
    assert find_replayed(world.store, label, "") is None


def test_a_list_of_parts_that_is_none_is_corrupted() -> None:
    raw = json.loads(encode_replayed(ReplayedParts("a", "0" * 64, "fp", {}, {})))
    for name in ("parts", "source_offsets"):
        with pytest.raises(Corrupted, match="bad_replay"):
            decode_replayed(json.dumps({**raw, name: 7}).encode())
