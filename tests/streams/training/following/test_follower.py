"""A follower on a real broker: it learns new impressions, continues exactly where it was killed, publishes through the gate, and stops while data is bad."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.clock import SystemClock
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics, describe_index
from infra.kafka.reader import read_topic
from infra.kafka.redrive import read_dead_letters
from infra.metrics import Metrics
from infra.settings import load_settings
from schemas.decoding import decode_record
from schemas.errors import Incompatible, Unavailable
from schemas.events import CheckpointRecord, ImpressionRecord, ShownItem
from schemas.ids import IdKind
from schemas.index.control import Init
from schemas.index.manifest import checkpoint_path
from schemas.model.checkpoint import read_checkpoint
from streams.training.event_decoder import TRAINING_TOPICS, EventDecoder
from streams.training.following import followed_log, follower_program
from streams.training.following import follower as follower_module
from streams.training.following.followed_log import FollowedLog
from streams.training.following.follower import Follower, Place
from streams.training.following.follower_program import FollowPlan, open_follower
from streams.training.settings import TrainSettings
from tests.infra.kafka.deleted_topics import delete_topics
from tests.sim.store import MemoryStore
from tests.streams.training.following.stream import TasteStream, write_base
from tests.streams.training.shop import publish

IMPRESSIONS_PER_ROUND = 12


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours after it runs."""


class FakeClock(SystemClock):
    """Wall time as told, so that a stream of the past is fresh."""

    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Stage:
    """A broker with topics of one stream, and followers on it."""

    bootstrap: str
    prefix: str
    folder: Path
    stream: TasteStream = field(default_factory=TasteStream)
    said: list[dict[str, Any]] = field(default_factory=list)

    def publish(self, impressions: int) -> None:
        publish(self.bootstrap, self.prefix, self.stream.events(impressions))

    def produce(self, topic: str, value: bytes) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        producer.produce(self.prefix + topic, value, partition=0)
        assert producer.flush(30) == 0

    def begin_index(self) -> None:
        """As the first worker does: the store of a follower that publishes holds an index."""
        init = describe_index(self.bootstrap, self.prefix, 2, 2, IdKind.INT64)
        ensure_init(ControlLog(open_index_store(str(self.folder / "store"))), init, 1, "test")

    def newest_checkpoint(self) -> Path:
        """The file in the store that the newest record names."""
        return self.folder / "store" / published(self)[-1].uri.removeprefix("index:")

    def plan(self, name: str, every_s: float = 1e6) -> FollowPlan:
        given = {"batch_requests": 4, "seed": 3, "learning_rate": 1e-2}
        return FollowPlan(self.folder / name, every_s=every_s, warm_start=self.folder / "base.safetensors", given=given)

    @contextlib.contextmanager
    def follower(self, plan: FollowPlan, clock: FakeClock | None = None) -> Iterator[Follower]:
        self.clock = clock or FakeClock(self.stream.now_ms)
        flags = {
            "kafka": {"bootstrap_servers": self.bootstrap, "topic_prefix": self.prefix},
            "index": {"store": str(self.folder / "store"), "shards": 2, "user_partitions": 2},
            "train": {"status_every_s": 0.1},
        }
        settings = load_settings(TrainSettings, flags, {})
        say = lambda line: self.said.append(json.loads(line))  # noqa: E731
        with open_follower(settings, plan, say, lambda: False, Metrics(), self.clock) as follower:
            assert follower is not None
            yield follower

    def follow(self, plan: FollowPlan, until: Callable[[Follower], bool]) -> dict[str, torch.Tensor]:
        """The weights of a follower that ran until then."""
        with self.follower(plan) as follower:
            follower.run(lambda: until(follower))
            return {name: t.clone() for name, t in follower.learner.network.state_dict().items()}


@pytest.fixture
def stage(bootstrap_servers: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(followed_log, "REQUESTS_MAX", IMPRESSIONS_PER_ROUND)
    monkeypatch.setattr(followed_log, "_LINGER_S", 0.2)
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    made = Stage(bootstrap_servers, topic_prefix, tmp_path)
    write_base(tmp_path / "base.safetensors", made.stream)
    publish(bootstrap_servers, topic_prefix, made.stream.catalogue())
    return made


def begin_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base knows nothing of the log: all of its records are new to this follower."""
    monkeypatch.setattr(follower_program, "_first_place", lambda bootstrap, prefix, base: _oldest(bootstrap, prefix))


def _oldest(bootstrap: str, prefix: str) -> Any:
    ends = follower_program.fetch_ends(bootstrap, prefix)
    return follower_program.Place(
        0, {**ends, "impressions": follower_program.as_text(follower_program.start_offsets(bootstrap, prefix + "impressions"))}
    ), "start"


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_follower_begins_with_the_live_checkpoint_of_a_store_that_is_no_folder(tmp_path: Path) -> None:
    data = write_base(tmp_path / "base.safetensors", TasteStream()).read_bytes()
    live = SimpleNamespace(checkpoint_sha256=hashlib.sha256(data).hexdigest())
    store: Any = MemoryStore(lambda what: None, lambda: 0)
    store.put_bytes(checkpoint_path(live.checkpoint_sha256), data)
    control: Any = SimpleNamespace(refresh=lambda: SimpleNamespace(current=live))
    base = follower_program._open_base(FollowPlan(tmp_path), control, store, print, lambda: False)
    assert base is not None and base.info.sha256 == live.checkpoint_sha256


@pytest.mark.parametrize("kill_at", [1, 4, 9])
def test_a_follower_that_is_killed_at_any_step_ends_with_the_same_weights_bit_for_bit(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    begin_at_the_start(monkeypatch)
    stage.publish(40)
    expected = stage.follow(stage.plan("whole"), lambda f: f.place.requests >= 40)
    from streams.training.following.learner import OnlineLearner

    step, done = OnlineLearner.take_step, 0

    def killed(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == kill_at:
            raise Killed
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineLearner, "take_step", killed)
        with pytest.raises(Killed):
            stage.follow(stage.plan("killed"), lambda f: f.place.requests >= 40)
    write_base(stage.folder / "base.safetensors", TasteStream(seed=0))
    found = stage.follow(stage.plan("killed"), lambda f: f.place.requests >= 40)
    assert equal(expected, found) and not equal(found, stage.stream.network().state_dict())
    assert [line["begins"] for line in stage.said if "begins" in line] == ["start", "start", "kept state"]


def test_offsets_of_other_topics_are_refused_by_name_and_the_state_is_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_at_the_start(monkeypatch)
    stage.publish(12)
    stage.follow(stage.plan("kept"), lambda f: f.place.requests >= 12)
    kept = (path := stage.plan("kept").state_path).read_bytes()
    delete_topics(stage.bootstrap, [stage.prefix + topic for topic in TRAINING_TOPICS])
    apply_topics(stage.bootstrap, stage.prefix, 2, 2)
    publish(stage.bootstrap, stage.prefix, stage.stream.catalogue())
    stage.publish(40)
    with pytest.raises(Incompatible, match="other_topic"):
        stage.follow(stage.plan("kept"), lambda f: f.place.requests >= 13)
    assert path.read_bytes() == kept
    init = Init(2, 2, IdKind.INT64, {}, {"item-features": "of the index's own cluster"})
    ensure_init(ControlLog(open_index_store(str(stage.folder / "store"))), init, 1, "test")
    with pytest.raises(Incompatible, match="index's own cluster"):
        stage.follow(stage.plan("new"), lambda f: True)


def test_a_kept_state_whose_records_the_log_has_not_is_refused_with_a_step_that_helps(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place behind the end of the log was waited for permanently, and a removed one named a snapshot, which a follower has not."""
    begin_at_the_start(monkeypatch)
    stage.publish(12)
    stage.follow(stage.plan("kept"), lambda f: f.place.requests >= 12)
    fetch = follower_program.fetch_ends
    with monkeypatch.context() as patch:
        shorter = lambda *of: {**fetch(*of), "item-features": {"0": 0, "1": 0}}  # noqa: E731
        patch.setattr(follower_program, "fetch_ends", shorter)
        with pytest.raises(Incompatible, match=r"log_shorter: .*item-features partition 0, and the log ends at 0"):
            stage.follow(stage.plan("kept"), lambda f: True)
    stage.publish(12)
    ends = fetch(stage.bootstrap, stage.prefix)["impressions"]
    removed = [TopicPartition(f"{stage.prefix}impressions", int(p), end) for p, end in ends.items()]
    admin = AdminClient({"bootstrap.servers": stage.bootstrap})  # its futures fail when it is collected
    for done in admin.delete_records(removed).values():
        done.result(30)
    with pytest.raises(Incompatible, match=r"log_gone: .*/kept/online.state away") as refused:
        stage.follow(stage.plan("kept"), lambda f: True)
    path = stage.plan("kept").state_path
    assert f"move {path} away" in str(refused.value)
    path.rename(path.with_name("away"))
    stage.publish(4)
    stage.follow(stage.plan("kept"), lambda f: f.place.requests >= 4)


def test_a_follower_that_waits_for_records_ends_when_it_is_asked_to(stage: Stage) -> None:
    """At a start, or in a round, while the broker is away: no signal ended it."""
    asked = iter([False, True])
    begin = {topic: {"0": 0, "1": 0} for topic in TRAINING_TOPICS}
    decoder = EventDecoder(2, 2, IdKind.INT64)
    with FollowedLog(stage.bootstrap, stage.prefix, decoder, begin, stopping=lambda: next(asked)) as log:
        assert log.read({topic: {"0": 9_999, "1": 0} for topic in TRAINING_TOPICS}) is None


def test_what_is_published_between_a_kill_and_the_restart_changes_nothing_of_the_round_that_was_planned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_at_the_start(monkeypatch)
    stage.publish(5)
    expected = stage.follow(stage.plan("whole"), lambda f: f.place.number >= 1)
    from streams.training.following.learner import OnlineLearner

    def killed(*arguments: Any) -> Any:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OnlineLearner, "take_step", killed)
        with pytest.raises(Killed):
            stage.follow(stage.plan("killed"), lambda f: False)
    stage.publish(20)
    with stage.follower(stage.plan("killed")) as follower:
        follower.run(lambda: follower.place.number >= 1)
        assert follower.place.requests == 5 and equal(expected, follower.learner.network.state_dict())


def test_it_publishes_what_it_learnt_stops_while_records_do_not_read_and_starts_again_by_itself(stage: Stage) -> None:
    stage.begin_index()
    plan = stage.plan("out", every_s=0.01)
    with stage.follower(plan) as follower:

        def learn_until(requests: int, faults: tuple[str, ...]) -> None:
            stage.clock.ms = stage.stream.now_ms
            seen = len(stage.said)
            follower.run(lambda: follower.place.requests >= requests and any(told(line) == faults for line in stage.said[seen:]))

        def told(line: dict[str, Any]) -> tuple[str, ...]:
            return tuple(fault.partition(":")[0] for fault in line.get("faults", ["none yet"]))

        stage.publish(12)
        learn_until(12, ())
        first = published(stage)
        assert first and first[0].model_id == "online-000000003"
        for _ in range(4):
            stage.produce("impressions", b"\xff not json")
        stage.publish(12)
        learn_until(24, ("unreadable",))
        assert published(stage) == first
        stage.publish(96)
        learn_until(120, ())
        follower.run(lambda: len(published(stage)) > len(first))
    letters = read_dead_letters(stage.bootstrap, stage.prefix, "impressions")
    assert [(letter.record.value, letter.source.disposition) for letter in letters] == [(b"\xff not json", "malformed")] * 4
    path = stage.newest_checkpoint()
    card = read_checkpoint(path).info.card
    assert card["data"]["until_ms"] == stage.stream.now_ms and card["requests"] == 120 and card["progressive"]["requests"] == 120


def published(stage: Stage) -> list[CheckpointRecord]:
    return [decode_record(CheckpointRecord, r.value) for r in read_topic(stage.bootstrap, "model-checkpoints", prefix=stage.prefix)]


def test_late_data_is_learnt_and_not_published(stage: Stage) -> None:
    with stage.follower(stage.plan("out", every_s=0.01), FakeClock(stage.stream.now_ms + 3_600_000)) as follower:
        stage.publish(12)
        follower.run(lambda: follower.place.requests >= 12 and any(line.get("faults") for line in stage.said))
    assert stage.said[-1]["faults"][0].startswith("late") and not published(stage)


def test_a_follower_goes_on_from_where_the_training_of_its_base_ended(stage: Stage) -> None:
    stage.begin_index()
    stage.publish(8)
    plan = stage.plan("one", every_s=0.01)
    with stage.follower(dataclasses.replace(plan, given={**plan.given, "copr": 0.0})) as follower:
        stage.publish(12)
        follower.run(lambda: bool(published(stage)))
        assert follower.place.requests == 12  # earlier records are not its business
    with stage.follower(plan) as follower:
        assert follower.learner.chosen.copr == 0  # nothing says otherwise: as when it ended
    stage.publish(4)
    file = stage.newest_checkpoint()
    next_plan = FollowPlan(stage.folder / "two", warm_start=file, given=stage.plan("two").given)
    with stage.follower(next_plan) as follower:
        assert stage.said[-1]["begins"] == "where the base ended"
        assert follower.learner.chosen.copr == 0
        follower.run(lambda: follower.place.requests >= 4)
        assert follower.place.requests == 4


def test_a_base_that_is_not_what_the_models_file_describes_is_refused_before_anything_is_read(stage: Stage) -> None:
    file = stage.folder / "model.json"
    described = dataclasses.asdict(stage.stream.spec) | {"schema": None}
    sizes = {name: value for name, value in described.items() if name != "schema"}
    file.write_text(json.dumps({"schema": stage.stream.spec.schema.to_dict(), "model": sizes}))
    with stage.follower(dataclasses.replace(stage.plan("same"), model=file)) as follower:
        assert follower.place.requests == 0
    file.write_text(json.dumps({"schema": stage.stream.spec.schema.to_dict(), "model": sizes | {"bridges": 7, "recency": [5]}}))
    with (
        pytest.raises(Incompatible, match=r"other_model.*model\.json.*bridges \(\d there\), recency \(off there\)"),
        stage.follower(dataclasses.replace(stage.plan("other"), model=file)),
    ):
        pass


def test_a_broker_that_does_not_say_how_far_the_topics_are_is_asked_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, failed = followed_log.fetch_ends, 0

    def unreachable(*arguments: Any) -> Any:
        nonlocal failed
        failed += 1
        if failed < 3:
            raise Unavailable("kafka_failed", "away")
        return fetch(*arguments)

    with stage.follower(stage.plan("out")) as follower:
        stage.publish(4)
        monkeypatch.setattr(followed_log, "fetch_ends", unreachable)
        follower.run(lambda: follower.place.requests >= 4)
    assert failed == 3


def test_a_full_disk_stops_learning_and_publishing_and_costs_nothing_once_there_is_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.begin_index()
    begin_at_the_start(monkeypatch)
    stage.publish(24)
    expected = stage.follow(stage.plan("whole"), lambda f: f.place.requests >= 24)
    fsync, full = os.fsync, True

    def is_full(descriptor: int) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(follower_module, "_DISK_POLL_S", 0.05)
    with stage.follower(stage.plan("full", every_s=0.01)) as follower:
        monkeypatch.setattr(os, "fsync", is_full)
        with pytest.raises(Unavailable, match="state_not_kept"):  # the state that it would keep when it is stopped
            follower.run(lambda: any(line.get("faults") for line in stage.said))
        assert follower.place.requests == 0 and stage.said[-1]["faults"][0].startswith("not kept: ") and not published(stage)
        full = False
        follower.run(lambda: follower.place.requests >= 24 and bool(published(stage)))
        assert equal(expected, follower.learner.network.state_dict()) and not list((stage.folder / "full").glob(".*"))


def test_a_client_whose_clock_stands_still_does_not_keep_old_versions_of_items() -> None:
    shown = [ShownItem(item_id=1, position=0, bid=1.0, clicked=True)]
    hour_ms = 3_600_000
    times = [0, *range(100 * hour_ms, 100 * hour_ms + 30)]
    learnt = [ImpressionRecord(request_id=str(at), user_id=1, time_ms=at, items=shown) for at in times]
    place = Place(0, {}).after({}, learnt)
    assert place.settled_ms == 99 * hour_ms + 2 and place.from_ms == 100 * hour_ms
