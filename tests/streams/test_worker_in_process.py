"""A worker's looks at topics, its end and its settings, in this process: no broker and no process of its own."""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from infra.kafka.security import not_authorized
from schemas.errors import Incompatible, Unavailable
from schemas.ids import IdKind
from schemas.index.control import ControlState, Init
from schemas.topics import INDEX_DELTAS, ITEM_FEATURES, NEW_ITEMS, TOPICS
from streams.faust_shell import consume
from streams.settings import BuildSection, WorkerSettings
from streams.shard.log_ends import LogRange
from streams.worker import Worker, run_worker
from tests.streams.shard_world import ManualClock


class HangingApp:
    """Faust without a broker: it does not end, or does not even start, and does not hear a cancellation."""

    def __init__(self, starts: bool) -> None:
        self._starts = starts

    async def start(self) -> None:
        if not self._starts:
            await asyncio.Event().wait()

    async def wait_until_stopped(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("starts", [True, False])
def test_a_worker_that_is_to_end_does_not_wait_for_a_broker_that_is_away(starts: bool) -> None:
    turned_away = list[bool]()

    async def ends() -> bool:
        stop = asyncio.Event()
        stop.set()
        app: Any = HangingApp(starts)
        return await asyncio.wait_for(consume(app, stop, 0.05, lambda: turned_away.append(True)), 10.0)

    assert asyncio.run(ends()) is False and turned_away == [True]


def test_a_worker_ends_while_a_thread_of_it_waits_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the event loop waits for its threads: for a look at a slow broker that was 30 s."""
    left, go_on = list[int](), threading.Event()

    async def consume(*_: object) -> bool:
        waiting = asyncio.ensure_future(asyncio.to_thread(go_on.wait, 5.0))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        return True

    def leave(exit_code: int) -> None:
        left.append(exit_code)
        go_on.set()

    for name, stand_in in {"consume": consume, "leave_process": leave, "stop_signals": lambda: ()}.items():
        monkeypatch.setattr(f"streams.worker.{name}", stand_in)
    folders = {"worker": {"data_dir": tmp_path / "worker"}, "index": {"store": str(tmp_path / "store")}}
    worker = Worker(WorkerSettings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1"}, **folders}))
    monkeypatch.setattr(worker, "prepare", lambda: ControlState(init=Init(2, 1, IdKind.INT64, {})))
    monkeypatch.setattr(worker, "_make_app", lambda: SimpleNamespace(seek=None))
    for work in ("_reconcile", "_show_lag", "_watch_topics"):
        monkeypatch.setattr(worker, work, worker._stopping.wait)
    asyncio.run(worker.run())
    assert left == [0]


def test_revisions_are_wanted_at_least_three_times_in_the_retention_of_index_deltas() -> None:
    (hours,) = {topic.retention_hours for topic in TOPICS if topic.name == INDEX_DELTAS}
    assert BuildSection(revise_every_s=hours * 3_600 / 3).revise_every_s == hours * 1_200
    with pytest.raises(ValidationError):
        BuildSection(revise_every_s=hours * 3_600 / 3 + 1)


def test_a_worker_that_the_broker_refuses_does_not_ask_its_supervisor_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = WorkerSettings.model_validate(
        {"kafka": {"bootstrap_servers": "127.0.0.1:1"}, "worker": {"data_dir": tmp_path}, "build": {"warm": False}}
    )
    refused = not_authorized("127.0.0.1:1", "topic item-features is not readable")

    async def run(_: Worker) -> None:
        raise refused

    monkeypatch.setattr(Worker, "run", run)
    monkeypatch.setattr("streams.worker.watch_threads", lambda: None)
    with pytest.raises(SystemExit) as ended:
        run_worker(settings)
    assert ended.value.code == 78 and "grant it the right" in caplog.text


def test_a_worker_whose_index_store_is_no_store_does_not_ask_for_a_restart_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    named = {"worker": {"data_dir": tmp_path}, "build": {"warm": False}, "index": {"store": "ftp://shop/index"}}
    monkeypatch.setattr("streams.worker.watch_threads", lambda: None)
    with pytest.raises(SystemExit) as ended:
        run_worker(WorkerSettings.model_validate({"kafka": {"bootstrap_servers": "127.0.0.1:1"}, **named}))
    assert ended.value.code == 78 and "index_store_url" in caplog.text


def test_a_worker_says_that_a_topic_is_gone_and_ends_at_the_next_look_at_topics_that_are_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streams.worker._TOPICS_EVERY_S", 0.01)
    monkeypatch.setattr("streams.worker.stop_process", lambda error, _: ended.append(error))
    init = Init(2, 1, IdKind.INT64, {ITEM_FEATURES: ITEM_FEATURES}, {ITEM_FEATURES: "first"})
    gone, second = replace(init, topic_ids={}), replace(init, topic_ids={ITEM_FEATURES: "second"})
    worker, ended, looks = object.__new__(Worker), list[BaseException](), [init, gone, gone, second]
    worker._stopping = threading.Event()
    worker.control_log = SimpleNamespace(state=ControlState(init=init))  # type: ignore[assignment]
    answers, shown = list[None](), list[int]()
    worker.metrics = SimpleNamespace(note_answer=lambda: answers.append(None), show_topics_gone=shown.append)  # type: ignore[assignment]
    worker.prefix, worker._gone = "shop.", set()

    def look(deadline_s: float) -> Init:
        if len(looks) == 1:
            worker._stopping.set()
        return looks.pop(0)

    worker._describe_index = look  # type: ignore[method-assign]
    worker.owned = SimpleNamespace(tasks=[])  # type: ignore[assignment]
    worker._watch_topics()
    assert not looks and len(answers) == 4 and shown == [0, 1, 1]
    assert len(ended) == 1 and "topic id of item-features: index has first, broker has second" in str(ended[0])
    assert caplog.text.count("topic_gone: the broker has no shop.item-features any more") == 1


def test_a_slow_broker_delays_the_check_of_the_topics_and_other_topics_are_still_refused() -> None:
    init, clock = Init(2, 1, IdKind.INT64, {ITEM_FEATURES: ITEM_FEATURES}, {ITEM_FEATURES: "first"}), ManualClock()
    worker, waits = object.__new__(Worker), list[float]()
    worker.clock, worker.prefix, worker._gone, worker._check_s = clock, "shop.", set(), 1.0  # type: ignore[assignment]
    worker.control_log = SimpleNamespace(state=ControlState(init=init))  # type: ignore[assignment]
    worker.metrics = SimpleNamespace(note_answer=lambda: None, show_topics_gone=lambda _: None)  # type: ignore[assignment]

    def check(answer_s: float, found: Init = init) -> bool:
        def look(deadline_s: float) -> Init:
            waits.append(deadline_s)
            clock.seconds += min(answer_s, deadline_s)
            if answer_s > deadline_s:
                raise Unavailable("kafka_unreachable", f"no answer after {deadline_s:g} s")
            return found

        worker._describe_index = look  # type: ignore[method-assign]
        try:
            worker._check_topics_soon()
        except Unavailable:
            return False
        return True

    assert [check(3.0) for _ in range(4)] == [False, False, True, True] and waits == [1.0, 2.0, 4.0, 6.0]
    assert [check(0.01) for _ in range(2)] == [True, True] and waits[4:] == [6.0, 1.0]
    assert not any(check(60.0) for _ in range(6)) and max(waits) == 10.0, "the end of a worker waits for a check under way"
    with pytest.raises(Incompatible, match="topic id of item-features"):
        check(3.0, replace(init, topic_ids={ITEM_FEATURES: "second"}))


def test_a_log_that_lost_its_end_under_a_running_worker_is_found_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: Future[dict[str, int]] = Future()
    applied.set_result({ITEM_FEATURES: 10, NEW_ITEMS: 4})
    ends = {ITEM_FEATURES: {1: LogRange(0, 10)}, NEW_ITEMS: {1: LogRange(2, 9)}}
    monkeypatch.setattr("streams.worker.fetch_log_ranges", lambda *_: ends)
    worker = object.__new__(Worker)
    worker.bootstrap = worker.prefix = ""
    worker.owned = SimpleNamespace(tasks=[SimpleNamespace(number=1, submit=lambda _: applied)])  # type: ignore[assignment]
    assert worker._find_short_log("") == ""
    ends[ITEM_FEATURES] = {1: LogRange(0, 9)}
    place = worker._find_short_log("")
    assert place == "item-features/1"
    ends[ITEM_FEATURES] = {1: LogRange(0, 8)}
    with pytest.raises(Incompatible, match="log_shorter: shard 1 continues item-features at offset 10, the log ends at 8"):
        worker._find_short_log(place)
