"""`aif statistics` on the real broker: from a checkpoint that names a statistic to its updates in item-features, over a kill."""

import asyncio
import dataclasses
import gc
import hashlib
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Uuid

import streams.statistics.program as program_module
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics, describe_index, fetch_topics, topic_ids
from infra.kafka.reader import read_topic
from infra.processes import Child, wait_until
from infra.settings import load_settings
from schemas.decoding import decode_record, decode_user_features
from schemas.errors import AifError, Incompatible, Unavailable
from schemas.events import Behaviour, BehavioursRecord, ItemFeaturesRecord, ItemFeaturesUpdate, StatisticsReport, encode_record
from schemas.features import Feature, Scope
from schemas.ids import IdKind
from schemas.index.control_entry import Entry, Init
from schemas.index.lifecycle import EntryKind
from schemas.index.manifest import checkpoint_path
from schemas.kinds import NUMERIC
from schemas.statistics import Log, Measure, Statistic
from schemas.topics import IMPRESSIONS, ITEM_FEATURES, STATISTICS_REPORTS, USER_BEHAVIOURS, USER_FEATURES
from streams.faust_shell import EXIT_OPERATOR
from streams.settings import StatisticsSettings
from streams.statistics.owner import TOPICS
from streams.statistics.program import StatisticsProgram, run_statistics
from tests.infra.kafka.deleted_topics import delete_topics
from tests.streams.version_world import SCHEMA, checkpoint_bytes
from tests.streams.worker_stage import SHARDS, WAIT_S, WorkerStage, open_template

TAKEN = Feature("taken", Scope.ITEM, NUMERIC, realtime=True, statistic=Statistic(Log.BEHAVIOURS, Measure.EXACT))
DID = Feature("did", Scope.USER, NUMERIC, statistic=Statistic(Log.BEHAVIOURS, Measure.EXACT))


def open_index(stage: WorkerStage) -> None:
    """An index with one wanted version, whose checkpoint names the statistic; no worker."""
    control = ControlLog(store := open_index_store(stage.environment("")["AIF_INDEX__STORE"]))
    init = describe_index(stage.bootstrap, stage.prefix, SHARDS, 1, "int64")
    ensure_init(control, init, 1, "test")
    data = checkpoint_bytes(schema=dataclasses.replace(SCHEMA, features=(*SCHEMA.features, TAKEN, DID)))
    sha = hashlib.sha256(data).hexdigest()
    store.put_bytes(checkpoint_path(sha), data)
    control.append(
        lambda _: Entry(EntryKind.WANT, 2, "test", version=0, cause="checkpoint", checkpoint_sha256=sha, encoder_fingerprint="e")
    )


def start(stage: WorkerStage) -> Child:
    environment = {
        **stage.environment(""),
        "AIF_STATISTICS__DATA_DIR": str(stage.directory / "statistics"),
        "AIF_STATISTICS__INTERVAL_S": "0.1",
    }
    child = open_template().start_child(
        "statistics", "infra.cli:main", [], stage.log_path("statistics"), argv=["aif", "statistics"], environment=environment
    )
    stage.children.append(child)
    return child


def read_counts(stage: WorkerStage) -> tuple[dict[Any, float], int, list[str]]:
    """(the last count of each item, records of item-features, the names in the last report)."""
    counts, records = dict[Any, float](), list(read_topic(stage.bootstrap, ITEM_FEATURES, prefix=stage.prefix))
    for record in records:
        for update in decode_record(ItemFeaturesRecord, record.value).updates:
            if update.op == "statistics":
                counts[update.item_id] = update.features["taken"]  # type: ignore[assignment]
    reports = list(read_topic(stage.bootstrap, STATISTICS_REPORTS, prefix=stage.prefix))
    return counts, len(records), decode_record(StatisticsReport, reports[-1].value).names if reports else []


def read_user_counts(stage: WorkerStage) -> dict[str, Any]:
    """The last count of each user."""
    records = read_topic(stage.bootstrap, USER_FEATURES, prefix=stage.prefix)
    told = [decode_user_features(record.key, record.value, IdKind.INT64, record.partition, 1) for record in records]
    return {str(update.user_id): update.features["did"] for update in told}


def test_the_statistics_that_a_checkpoint_names_are_sent_and_a_second_process_goes_on(stage: WorkerStage) -> None:
    open_index(stage)
    with stage.publisher() as publisher:
        publisher.publish_items(ItemFeaturesUpdate(item_id=i, version=1, features={"price": 1.0}) for i in range(4))
        publisher.publish_behaviours(Behaviour(user_id=u, item_id=u % 3, time_ms=1_000 + u) for u in range(7))
    child = start(stage)
    wanted = {0: 3.0, 1: 2.0, 2: 2.0}
    wait_until(lambda: read_counts(stage)[0] == wanted, WAIT_S, f"the first counts; log: {child.log_tail()}", poll_s=0.2)
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not child.alive(), WAIT_S, "its end")
    with stage.publisher() as publisher:
        publisher.publish_behaviours(Behaviour(user_id=9, item_id=i, time_ms=2_000) for i in (0, 3, 77))
    child = start(stage)
    wanted = {0: 4.0, 1: 2.0, 2: 2.0, 3: 1.0}
    wait_until(lambda: read_counts(stage)[0] == wanted, WAIT_S, f"counts that go on; log: {child.log_tail()}", poll_s=0.2)
    wait_until(lambda: read_counts(stage)[2] == ["taken"], WAIT_S, f"a report; log: {child.log_tail()}", poll_s=0.2)
    records = read_counts(stage)[1]
    assert read_user_counts(stage) == {"0": 1.0, "1": 1.0, "2": 1.0, "3": 1.0, "4": 1.0, "5": 1.0, "6": 1.0, "9": 3.0}
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not child.alive(), WAIT_S, "its end")
    assert child.process.wait() == 0 and read_counts(stage)[1] == records, "nothing is sent where nothing changed"


def behaviour(item: int) -> bytes:
    return encode_record(BehavioursRecord(updates=[Behaviour(user_id=1, item_id=item, time_ms=1_000)]))


def test_packed_events_are_counted_and_a_topic_that_is_made_again_is_counted_from_its_beginning(stage: WorkerStage) -> None:
    """Its client reads two codecs of five. The offsets in its directory mean nothing in another topic, whose events it took for counted ones."""
    open_index(stage)
    with stage.publisher() as publisher:
        publisher.publish_items(ItemFeaturesUpdate(item_id=i, version=1, features={"price": 1.0}) for i in range(3))
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        for topic in (USER_BEHAVIOURS, IMPRESSIONS, USER_FEATURES):
            stage.publish_raw(topic, [(0, b"1", behaviour(1))] * 20, **{"compression.type": codec})
    child = start(stage)
    wait_until(lambda: read_counts(stage)[0] == {1: 80.0}, WAIT_S, f"the packed events; log: {child.log_tail()}", poll_s=0.2)
    delete_topics(stage.bootstrap, [stage.prefix + USER_BEHAVIOURS])
    apply_topics(stage.bootstrap, stage.prefix, SHARDS, 1)
    stage.publish_raw(USER_BEHAVIOURS, [(0, b"1", behaviour(2))] * 90)
    wait_until(lambda: read_counts(stage)[0] == {1: 0.0, 2: 90.0}, WAIT_S, f"the new topic; log: {child.log_tail()}", poll_s=0.2)
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not child.alive(), WAIT_S, "its end")


def test_a_look_at_the_topics_leaves_little_in_memory(stage: WorkerStage) -> None:
    """The client never frees the ids of topics that it was asked for. Of all 17 topics, every 5 s, that was 1.2 MiB an hour."""

    def count() -> int:
        return sum(type(one) is Uuid for one in gc.get_objects())

    program = StatisticsProgram(load_settings(StatisticsSettings, environment=stage.environment("")))
    known = {topic: found.topic_id for topic, found in fetch_topics(stage.bootstrap, stage.prefix, of=TOPICS).items()}
    before = count()
    for _ in range(10):
        assert program._find_made_again(known) == []
    assert count() - before <= 10 * len(TOPICS)
    assert program._find_made_again(known | {ITEM_FEATURES: "another"}) == [ITEM_FEATURES]


@pytest.mark.parametrize("where", ["_prepare", "consume"])
def test_the_statistics_end_while_a_thread_of_them_waits_for_an_answer(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the event loop waits for its threads: for a look at a slow broker that was 30 s."""
    left, go_on = list[int](), threading.Event()

    def leave(exit_code: int) -> None:
        left.append(exit_code)
        go_on.set()
        raise SystemExit(exit_code)

    def prepare(_: object) -> dict[str, str]:
        if where == "_prepare":
            go_on.wait(5.0)
        return {}

    async def consume(*_: object) -> bool:
        waiting = asyncio.ensure_future(asyncio.to_thread(go_on.wait, 5.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        return True

    async def keep() -> None:
        stop = asyncio.Event()
        if where == "_prepare":
            stop.set()
        await program._keep({"taken": TAKEN.statistic}, stop)

    app = SimpleNamespace(seek=None)
    for name, stand_in in {
        "leave_process": leave,
        "consume": consume,
        "make_app": lambda *_: app,
        "add_agent": lambda *_, **__: None,
    }.items():
        monkeypatch.setattr(program_module, name, stand_in)
    folders = {"statistics": {"data_dir": tmp_path / "statistics"}, "index": {"store": str(tmp_path / "store")}}
    program = StatisticsProgram(StatisticsSettings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1"}, **folders}))
    monkeypatch.setattr(program, "_prepare", prepare)
    monkeypatch.setattr(program, "_watch", lambda *_: not program._stopping.wait())
    ensure_init(ControlLog(open_index_store(str(tmp_path / "store"))), Init(SHARDS, 1, IdKind.INT64, {}), 1, "test")
    program._control.refresh()
    with pytest.raises(SystemExit):
        asyncio.run(keep())
    assert left == [0]


def test_a_missing_topic_is_named_with_what_helps_and_is_not_made(stage: WorkerStage) -> None:
    open_index(stage)
    program = StatisticsProgram(load_settings(StatisticsSettings, environment=stage.environment("")))
    init = program._control.refresh().init
    assert init is not None
    for topic, code, remedy in (
        (STATISTICS_REPORTS, "topic_missing", "`aif topics apply`"),
        (ITEM_FEATURES, "topic_gone", "into a new index"),
    ):
        delete_topics(stage.bootstrap, [stage.prefix + topic])
        with pytest.raises(Incompatible, match=f"{code}: the broker has no {stage.prefix}{topic}.*{remedy}"):
            program._prepare(init)
        assert topic not in topic_ids(stage.bootstrap, stage.prefix)
        apply_topics(stage.bootstrap, stage.prefix, SHARDS, 1)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (Unavailable("kafka_not_authorized", "x"), SystemExit),
        (Incompatible("topic_missing", "x"), SystemExit),
        (Unavailable("kafka_unreachable", "x"), Unavailable),
    ],
)
def test_a_start_that_an_operator_must_mend_has_an_exit_code_of_its_own(
    error: AifError, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(program_module, "watch_threads", lambda: None)
    monkeypatch.setattr(program_module, "StatisticsProgram", fail)
    with pytest.raises(raised) as found:
        run_statistics(StatisticsSettings())
    assert not isinstance(found.value, SystemExit) or found.value.code == EXIT_OPERATOR
