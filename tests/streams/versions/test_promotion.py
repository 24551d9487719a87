"""Canary and promotion over real versions: real shards, real parts, real networks; the builder at once or by hand."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from infra.index.control_log import ControlLog
from infra.index.sample import SHARDS_SAMPLED_MAX, SampledRows, find_rows, read_item_sample
from infra.index.store import FolderStore
from schemas.errors import Unavailable
from schemas.ids import encode_index_key
from schemas.index.control import Entry
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import checkpoint_path
from schemas.model.checkpoint import encode_checkpoint, read_checkpoint
from schemas.model.network import build_network
from schemas.model.parameters import Parameters
from streams.builders import canary_scores as canary
from streams.builders.canary_scores import run_canary
from streams.builders.jobs import CanaryJob, Job
from streams.builders.pool import Ticket
from streams.core.canary import CanaryFigures, CanaryRules
from streams.core.item import unpack_features
from streams.encoder import EncoderCache
from streams.versions.promotion import Promotion
from tests.streams.shard_world import ManualClock, embed, upsert
from tests.streams.version_world import InlineBuilders, Worker, World, checkpoint_bytes

RULES = CanaryRules(users=4, items=64)
NEVER = {"reseal_interval_s": 1e12}


def fill(world: World, items: int = 300) -> None:
    for at in range(0, items, 100):
        world.publish_items(*(upsert(i, 1, category=i % 7, price=1.0 + i % 5, stock=1) for i in range(at, min(items, at + 100))))
        world.publish_embeddings(*(embed(i, *(float((i * k) % 11 - 5) for k in range(1, 7))) for i in range(at, min(items, at + 100), 2)))


class Builders(InlineBuilders):
    """Canaries wait until a test lets them answer; everything else is done at once."""

    def __init__(self, world: World) -> None:
        super().__init__(world.store)
        self.world, self.waiting = world, list[Ticket]()

    def submit(self, job: Job) -> Ticket:
        if not isinstance(job, CanaryJob):
            return super().submit(job)
        self.waiting.append(Ticket(job))
        return self.waiting[-1]

    def sing(self, overlap: float | None = None) -> None:
        """The newest canary ends; with real figures, or these."""
        ticket = self.waiting[-1]
        assert isinstance(ticket.job, CanaryJob)
        live = ticket.job.live
        figures = run_canary(self.store, EncoderCache(self.store), ticket.job)
        if overlap is not None:
            against = -1 if live is None else live.version
            figures = CanaryFigures(9, 0.0, against, 0.0, overlap, 1.0)
        ticket.future.set_result(figures)


@pytest.fixture
def builders(world: World) -> Builders:
    fill(world)
    return Builders(world)


@pytest.fixture
def worker(world: World, builders: Builders) -> Worker:
    worker = Worker(world, builders=builders, canary=RULES, **NEVER)
    worker.settle()
    return worker


def go_live(world: World, worker: Worker, builders: Builders, version: int, seed: int = 0) -> None:
    world.want(version, seed)
    worker.settle()
    builders.sing(1.0)
    worker.settle()
    assert world.state.live == version


# --- the entries -----------------------------------------------------------------------------------------------------


def test_a_version_waits_for_its_canary_and_the_log_says_what_it_sang(world: World, worker: Worker, builders: Builders) -> None:
    world.want(1)
    worker.settle()
    assert world.state.versions[1].state is State.PUBLISHED and len(builders.waiting) == 1
    builders.sing()
    worker.settle()
    state = world.state
    assert state.live == 1 and state.versions[1].reason.startswith("canary: 256 pairs") and state.versions[1].by == "w"


def test_a_version_that_fails_is_withheld_with_the_reason_until_it_is_approved(world: World, worker: Worker, builders: Builders) -> None:
    go_live(world, worker, builders, 1)
    world.want(2, 1)
    worker.settle()
    builders.sing(0.1)
    worker.settle()
    state = world.state
    assert (state.live, state.versions[2].state, state.versions[2].withheld) == (1, State.PUBLISHED, True)
    assert "its best tenth shares 0.100 with that of 1" in state.versions[2].reason and "aif index approve 2" in state.versions[2].reason
    assert [e.reason for e in worker.events if e.kind == "withheld"] == [state.versions[2].reason]
    heard = len(builders.waiting)
    worker.settle()
    assert len(builders.waiting) == heard and world.entries(EntryKind.WITHHOLD) == 1
    world.write(Entry(EntryKind.APPROVE, 0, "anna", 2))
    worker.settle()
    assert world.state.live == 2 and len(builders.waiting) == heard


def test_an_approval_beforehand_spares_the_canary(world: World, worker: Worker, builders: Builders) -> None:
    world.want(1)
    worker.settle()
    world.write(Entry(EntryKind.APPROVE, 0, "anna", 1))
    worker.settle()
    assert world.state.live == 1 and builders.waiting[0].abandoned


def test_several_workers_write_one_entry_and_a_restart_costs_only_a_repeat(world: World, worker: Worker, builders: Builders) -> None:
    world.want(1)
    worker.settle()
    others = [Promotion(ControlLog(world.store), ManualClock(), InlineBuilders(world.store), RULES, name) for name in ("a", "b")]
    for other in others:
        other._control_log.refresh()
    assert [e.kind for other in others for e in other.step()] == [EntryKind.PROMOTE]
    builders.sing()
    worker.settle()
    assert world.entries(EntryKind.PROMOTE) == 1


@pytest.mark.parametrize("is_overtaken", [False, True])  # the verdict, when it is written
def test_a_verdict_against_a_version_that_is_no_longer_live_does_not_count(
    is_overtaken: bool, world: World, worker: Worker, builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in (1, 2):
        go_live(world, worker, builders, version)
    world.want(3, 1)
    worker.settle()
    promotions, put = [Entry(EntryKind.PROMOTE, 0, "anna", 1)], FolderStore.put_exclusive

    def overtaken(store: FolderStore, path: str, data: bytes) -> bool:
        if promotions:
            world.write(promotions.pop())
        return put(store, path, data)

    if is_overtaken:
        monkeypatch.setattr(FolderStore, "put_exclusive", overtaken)
    else:
        world.write(promotions.pop())
    builders.sing(0.0)
    worker.settle()
    worker.step()
    assert not promotions and not world.state.versions[3].withheld and builders.waiting[-1].job.live.version == 1  # type: ignore[union-attr]
    builders.sing(1.0)
    worker.settle()
    assert world.state.live == 3


def test_a_hold_gives_the_canary_up_and_the_release_begins_it_again(world: World, worker: Worker, builders: Builders) -> None:
    world.want(1)
    worker.settle()
    world.write(Entry(EntryKind.HOLD, 0))
    worker.settle()
    assert builders.waiting[-1].abandoned and world.state.live is None
    world.write(Entry(EntryKind.RELEASE, 0))
    worker.settle()
    builders.sing()
    worker.settle()
    assert world.state.live == 1 and len(builders.waiting) == 2


def test_a_canary_that_fails_to_run_is_reported_and_run_again(world: World, worker: Worker, builders: Builders) -> None:
    world.want(1)
    worker.settle()
    builders.waiting[-1].future.set_exception(Unavailable("builder_died", "a builder ended"))
    report = worker.step()
    assert any("builder_died" in error for error in report.errors) and world.state.live is None
    world.clock.seconds += 10
    worker.settle()
    builders.sing()
    worker.settle()
    assert world.state.live == 1


# --- the figures -----------------------------------------------------------------------------------------------------


def job_of(world: World, version: int, live: int | None) -> CanaryJob:
    versions = world.state.versions
    return CanaryJob(versions[version], None if live is None else versions[live], RULES.users, RULES.items)


def measure(world: World, version: int, live: int | None) -> CanaryFigures:
    return run_canary(world.store, EncoderCache(world.store), job_of(world, version, live))


def test_figures_follow_from_the_files_alone(world: World, worker: Worker, builders: Builders) -> None:
    go_live(world, worker, builders, 1)
    go_live(world, worker, builders, 2, 1)
    first = measure(world, 2, 1)
    assert measure(world, 2, 1) == first
    assert (first.pairs, first.bad_share, first.against) == (256, 0.0, 1)
    assert first.distance is not None and 0 < first.distance <= 1 and first.overlap is not None


def test_a_version_is_no_distance_from_one_of_the_same_checkpoint_whatever_changed_since_the_live_one_was_sealed(
    world: World, worker: Worker, builders: Builders
) -> None:
    go_live(world, worker, builders, 1)
    go_live(world, worker, builders, 2)
    figures = measure(world, 2, 1)
    assert (figures.distance, figures.overlap) == (0.0, 1.0)
    world.publish_items(*(upsert(i, 9, category=(i + 3) % 7, price=400.0 - i, stock=9) for i in range(300)))
    world.publish_embeddings(*(embed(i, *(float((i * k) % 7 - 3) for k in range(1, 7))) for i in range(300)))
    worker.settle()
    go_live(world, worker, builders, 3)
    figures = measure(world, 3, 1)
    assert (figures.distance, figures.overlap, figures.uncompared) == (0.0, 1.0, "")


@pytest.mark.parametrize("by", [4.0, -4.0])
def test_a_bias_of_the_last_layer_is_withheld_although_the_live_version_hardly_ranks(
    by: float, world: World, worker: Worker, builders: Builders
) -> None:
    go_live(world, worker, builders, 1)
    network = read_checkpoint(checkpoint_bytes(0)).network
    with torch.no_grad():
        [*network.head.rest.modules()][-1].bias += by  # type: ignore[operator]
    world.want_bytes(2, encode_checkpoint(network, "shifted", {}))
    worker.settle()
    figures = measure(world, 2, 1)
    assert figures.distance == pytest.approx(4.0, abs=1e-4) and figures.overlap == 1.0 and not figures.ranks
    builders.sing()
    worker.settle()
    assert world.state.live == 1 and world.state.versions[2].withheld and "its logits are 4.000 away" in world.state.versions[2].reason


def test_clicks_are_compared_whatever_the_models_call_them(world: World, worker: Worker, builders: Builders) -> None:
    """A mapping names the tasks, and the first is the click."""
    go_live(world, worker, builders, 1)
    read = read_checkpoint(checkpoint_bytes(0))
    network = build_network(Parameters(dataclasses.replace(read.spec, tasks=("view",)), read.parameters.arrays))
    network.w_hash_KM = read.w_hash
    world.want_bytes(2, encode_checkpoint(network, "renamed", {}))
    worker.settle()
    figures = measure(world, 2, 1)
    assert (figures.distance, figures.overlap) == (0.0, 1.0)


def test_rows_of_other_items_are_seen(world: World, worker: Worker, builders: Builders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the rows of the new version stand at other keys."""
    go_live(world, worker, builders, 1)
    go_live(world, worker, builders, 2)
    monkeypatch.setattr(canary, "find_rows", lambda *a: (found := find_rows(*a)) and dataclasses.replace(found, rows_R=found.rows_R[::-1]))
    figures = measure(world, 2, 1)
    assert figures.overlap is not None and figures.overlap < 0.5


def test_rows_that_are_no_numbers_are_seen_in_a_first_version_too(
    world: World, worker: Worker, builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_live(world, worker, builders, 1)

    def spoilt(*arguments: object) -> SampledRows:
        sample = find_rows(*arguments)  # type: ignore[arg-type]
        rows = sample.rows_R.copy()
        rows["vector"][:16] = np.nan
        return dataclasses.replace(sample, rows_R=rows)

    monkeypatch.setattr(canary, "find_rows", spoilt)
    figures = measure(world, 1, None)
    assert figures.bad_share >= 0.25 and figures.distance is None


def test_the_files_of_the_live_version_are_not_needed_but_its_model_is(world: World, worker: Worker, builders: Builders) -> None:
    go_live(world, worker, builders, 1)
    world.want(2, 1)
    worker.settle()
    full = world.manifest(1).seals[0].full
    world.store.remove(f"{full.directory}/{full.files[0].name}")
    assert measure(world, 2, 1).against == 1
    world.store.remove(checkpoint_path(world.state.versions[1].checkpoint_sha256))
    builders.sing()
    worker.settle()
    status = world.state.versions[2]
    assert world.state.live == 1 and status.withheld and "not compared with the live version" in status.reason
    assert "aif index approve 2" in status.reason
    world.write(Entry(EntryKind.APPROVE, 0, "anna", 2))
    worker.settle()
    assert world.state.live == 2
    full = world.manifest(2).seals[0].full
    world.store.remove(f"{full.directory}/{full.files[0].name}")
    with pytest.raises(Unavailable, match="missing_file"):
        measure(world, 2, None)


def test_a_store_that_is_away_during_the_canary_withholds_nothing(
    world: World, worker: Worker, builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_live(world, worker, builders, 1)
    world.want(2, 1)
    worker.settle()
    live, get = checkpoint_path(world.state.versions[1].checkpoint_sha256), FolderStore.get

    def away(store: FolderStore, path: str, bytes_max: int = 1 << 30) -> bytes:
        if path == live:
            raise Unavailable("store_unreachable", path)
        return get(store, path, bytes_max)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "get", away)
        with pytest.raises(Unavailable, match="store_unreachable"):
            measure(world, 2, 1)
    assert measure(world, 2, 1).against == 1


def test_an_untrained_live_version_has_no_best_tenth(world: World, worker: Worker, builders: Builders) -> None:
    """Untrained networks rank unlike each other, and no index should be kept at the first of them."""
    go_live(world, worker, builders, 1)
    world.want(2, 1)
    worker.settle()
    builders.sing()
    worker.settle()
    assert world.state.live == 2 and "not judged: the live version's logits spread by" in world.state.versions[2].reason


@pytest.mark.parametrize("allowed", [False, True])
def test_a_second_version_over_zero_items_is_compared_with_nothing(allowed: bool, world: World) -> None:
    worker = Worker(world, canary=dataclasses.replace(RULES, allow_uncompared=allowed), **NEVER)
    for version, seed in ((0, 0), (1, 1)):
        world.want(version, seed)
        worker.settle()
    assert world.state.live == (1 if allowed else 0) and world.state.versions[1].withheld is not allowed


# --- the sample ------------------------------------------------------------------------------------------------------


def test_a_sample_is_spread_over_all_shards_and_keys_and_has_the_sealed_inputs(tmp_path: Path) -> None:
    world = World(tmp_path, shards=3)
    worker = Worker(world, (0, 1, 2), **NEVER)
    fill(world, 256)
    fill_more = [upsert(i, 1, category=1, price=float(i)) for i in range(10_000, 13_000)]
    for at in range(0, 3_000, 250):
        world.publish_items(*fill_more[at : at + 250])
    worker.settle()
    world.want(1)
    worker.settle()
    manifest = world.manifest(1)
    sample = read_item_sample(world.store, manifest, 300)
    ids = [int.from_bytes(item.key) - (1 << 63) for item in sample]
    assert len(set(ids)) == len(ids) and 250 <= len(ids) <= 300 + SHARDS_SAMPLED_MAX
    assert sum(10_000 <= i < 11_500 for i in ids) > 80 and sum(i >= 11_500 for i in ids) > 80
    assert all(unpack_features(item.features)["price"] == i for item, i in zip(sample, ids, strict=True) if i >= 10_000)
    found = find_rows(world.store, manifest, [*(item.key for item in sample), encode_index_key(999_999)])
    assert list(found.keys) == [item.key for item in sample]
    assert read_item_sample(world.store, manifest, 300) == sample
    world.close()


def test_rows_of_a_sample_are_those_of_the_merged_view(world: World, worker: Worker, builders: Builders) -> None:
    go_live(world, worker, builders, 1)
    changed = [upsert(i, 5, category=3, price=9.0, stock=2) for i in range(0, 300, 3)]
    world.publish_items(*changed, *({"op": "delete", "item_id": i, "version": 5} for i in range(1, 300, 3)))
    worker.settle()
    world.write(Entry(EntryKind.WANT, 0, version=1, revision=1, cause="revise"))
    worker.settle()
    found = find_rows(world.store, world.manifest(1), [encode_index_key(i) for i in range(300)])
    ids = [int.from_bytes(key) - (1 << 63) for key in found.keys]
    assert ids == [i for i in range(300) if i % 3 != 1]
    assert set(found.rows_R["bid"][np.array(ids) % 3 == 0]) == {9.0}
    sample = read_item_sample(world.store, world.manifest(1), 64)
    assert len(sample) == 64
    ids = [int.from_bytes(item.key) - (1 << 63) for item in sample]
    assert all((unpack_features(item.features)["price"] == 9.0) == (i % 3 == 0) and i % 3 != 1 for item, i in zip(sample, ids, strict=True))
