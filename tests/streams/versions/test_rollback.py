"""The rollback by reports over real versions, and the reports as a worker reads them."""

import pytest

from infra.clock import SystemClock
from infra.index.control_log import ControlLog
from infra.kafka.admin import apply_topics
from infra.kafka.reader import SourceRecord
from infra.metrics import Metrics
from infra.processes import wait_until
from schemas.errors import Unavailable
from schemas.events import ServerReport, encode_record
from schemas.index.control import Entry, VersionStatus
from schemas.index.lifecycle import EntryKind, State
from schemas.token import VersionToken
from schemas.topics import SERVER_REPORTS
from serving.reports import Reporter
from streams.core.misbehaviour import Report, ReportHistory, ReportRules, plan_rollback
from streams.versions.promotion import RollbackWatch
from streams.versions.server_reports import ServerReports
from tests.streams.core.test_misbehaviour import lived, log
from tests.streams.shard_world import ManualClock
from tests.streams.version_world import Worker, World


def report(world: World, version: int, failed: int) -> Report:
    return Report("s1", version, world.clock.now_ms(), 1_000, failed=failed)


def test_a_live_version_that_servers_complain_of_is_left_once_and_the_log_says_why_and_by_whom(world: World) -> None:
    heard: ReportHistory = {}
    worker = Worker(world, reports_of=lambda: heard)
    for version, seed in ((1, 0), (2, 1)):
        world.want(version, seed)
        worker.settle()
    heard = {("s1", 2): [report(world, 2, failed=400)]}
    worker.settle()
    state = world.state
    assert (state.live, state.backup, state.held) == (1, 2, True)
    assert state.versions[2].turned_away and state.versions[2].by == "w" and "1 of 1 servers report faults" in state.versions[2].reason
    assert [e.version for e in worker.events if e.kind == "rolled_back"] == [2]
    heard = {("s1", 1): [report(world, 1, failed=400)]}
    world.write(Entry(EntryKind.RELEASE, 0, "anna"))
    worker.settle()
    assert world.state.live == 1 and world.entries(EntryKind.ROLLBACK) == 1


def test_of_several_workers_one_writes_the_entry(world: World) -> None:
    worker = Worker(world)
    for version in (1, 2):
        world.want(version)
        worker.settle()
    worker.close()
    bad = {("s1", 2): [report(world, 2, failed=400)]}
    watches = [
        RollbackWatch(ControlLog(world.store), world.clock, ReportRules(), lambda: bad, name, lambda _: {}, world.clock.now_ms)
        for name in "abc"
    ]
    assert [watch.step() is not None for watch in watches] == [True, False, False]
    assert world.state.versions[1].state is State.LIVE and world.entries(EntryKind.ROLLBACK) == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_backup_that_fell_behind_is_gone_back_to_and_what_it_lacks_is_said_in_the_entry_and_ever_after(world: World, known: bool) -> None:
    """Requests fail now: what items were is a better answer. Only an operator, who sees more than one way, is asked for --force."""
    heard: ReportHistory = {}

    def lag(_: VersionStatus) -> dict[int, int]:
        if not known:
            raise Unavailable("kafka_unreachable", "no broker answers")
        return {0: 1_234}

    worker = Worker(world, reports_of=lambda: heard, lag=lag)
    for version, seed in ((1, 0), (2, 1)):
        world.want(version, seed)
        worker.settle()
    worker.tasks[0].shard.update_version(1, behind=True)
    assert not worker.step().alarms, "no server serves the version that is behind"
    heard = {("s1", 2): [report(world, 2, failed=400)]}
    worker.settle()
    state = world.state
    assert (state.live, state.held) == (1, True)
    told = "fell behind (shard 0 by 1,234 records)" if known else "latest updates: kafka_unreachable: no broker answers"
    assert told in state.versions[2].reason and any(told in e.reason for e in worker.events if e.kind == "rolled_back")
    (alarm,) = worker.step().alarms
    assert "version 1 is served and has fallen behind in shard 0" in alarm


def record(value: bytes, at_ms: int = -1) -> SourceRecord:
    return SourceRecord(SERVER_REPORTS, 0, 7, b"s1", value, (), at_ms)


def test_a_report_is_read_as_it_was_sent_and_what_is_none_is_passed_over() -> None:
    clock = ManualClock()
    reports = ServerReports("nowhere:1", "", clock)
    sent = ServerReport(schema=1, server_id="s1", at_ms=clock.now_ms(), version=4, version_token="4.0-abc", seconds=10, answers=5, failed=2)
    reports.take(record(encode_record(sent)))
    assert reports.history() == {("s1", 4): (Report("s1", 4, clock.now_ms(), 5, failed=2),)}
    for wrong in (b"", b"{", b'{"schema":1}', encode_record(sent).replace(b'"answers":5', b'"answers":-5')):
        reports.take(record(wrong))
    assert reports.passed_over == 4 and len(reports.history()) == 1
    reports.close()


@pytest.mark.parametrize("off_ms", [-86_400_000, 86_400_000])
def test_a_server_whose_clock_is_wrong_or_is_set_is_judged_by_the_brokers(off_ms: int) -> None:
    """By its own clock nothing that it reports was of the last minute, or everything for a day."""
    clock = ManualClock()
    clock.seconds = 2 * 86_400.0
    reports, now_ms = ServerReports("nowhere:1", "", clock), clock.now_ms()
    sent = ServerReport(schema=1, server_id="s1", at_ms=now_ms, version=2, version_token="2.0-abc", seconds=10, answers=600)
    reports.take(record(encode_record(sent), now_ms))
    wrong = sent.model_copy(update={"at_ms": now_ms + off_ms, "failed": 400})
    for _ in range(2):  # the second time it is the same record
        reports.take(record(encode_record(wrong), now_ms + 10_000))
    assert reports.history()["s1", 2] == (Report("s1", 2, now_ms, 600), Report("s1", 2, now_ms + 10_000, 600, failed=400))
    state = log(*lived(1, 2))
    found = [plan_rollback(state, reports.history(), now_ms + later_s * 1_000, ReportRules()) for later_s in (11, 120)]
    assert found[0] is not None and found[0].back_to == 1 and found[1] is None


@pytest.mark.parametrize("off_s", [-3_960.0, -3_240.0, 3_240.0, 3_960.0])  # 0.9 and 1.1 hours
@pytest.mark.parametrize("store_off_s", [-3_960.0, 0.0, 3_960.0])
def test_one_faulty_server_of_two_rolls_nothing_back_whatever_the_clocks_of_worker_and_store(
    world: World, off_s: float, store_off_s: float
) -> None:
    """Reports of the healthy one were older than the horizon of a worker that is an hour ahead, and the faulty one was one of one."""
    worker = Worker(world)
    for version, seed in ((1, 0), (2, 1)):
        world.want(version, seed)
        worker.settle()
    broker_ms, clock = world.clock.now_ms() + 10**9, ManualClock()
    clock.seconds = broker_ms / 1000 + off_s
    world.clock.seconds = broker_ms / 1000 + store_off_s
    reports = ServerReports("nowhere:1", "", clock)
    watch = RollbackWatch(ControlLog(world.store), world.clock, ReportRules(), reports.history, "w", lambda _: {}, reports.now_ms)
    sent = ServerReport(schema=1, server_id="s1", at_ms=0, version=2, version_token="2.0-abc", seconds=10, answers=600)
    watch.control_log.refresh()
    for turn in range(3):
        reports.take(record(encode_record(sent), broker_ms + turn * 10_000))
        reports.take(record(encode_record(sent.model_copy(update={"server_id": "s2", "failed": 400})), broker_ms + turn * 10_000 + 1))
        clock.seconds += 10
        assert watch.step() is None
    for place in reports.history():
        assert len(reports.history()[place]) == 3
    reports.take(record(encode_record(sent.model_copy(update={"failed": 400})), broker_ms + 30_000))  # now both are faulty
    found = watch.step()
    assert found is not None and found.reason.startswith("2 of 2 servers")


def test_faults_of_an_hour_before_the_start_are_no_reason_to_roll_back(bootstrap_servers: str, topic_prefix: str) -> None:
    """No server has spoken since: how long ago that was, only the broker's clock says."""
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    reporter = Reporter(Metrics(), bootstrap_servers, topic_prefix, "host:1", 0.05, lambda: VersionToken(4, 0, "aaaaaaaa"))
    first = ServerReports(bootstrap_servers, topic_prefix, SystemClock())
    first.start()
    reporter.start()
    wait_until(lambda: first.now_ms() is not None, 120, "a report to arrive", poll_s=0.02)
    reporter.close()
    first.close()
    ahead = ManualClock()
    ahead.seconds = SystemClock().now_ms() / 1000 + 3_960
    second = ServerReports(bootstrap_servers, topic_prefix, ahead)
    second.start()
    wait_until(lambda: ("host:1", 4) in second.history(), 120, "the reports of before", poll_s=0.02)
    second.close()
    assert second.now_ms() is None


def test_what_a_server_sends_is_what_a_worker_hears(bootstrap_servers: str, topic_prefix: str) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 1, 1)
    reports = ServerReports(bootstrap_servers, topic_prefix, SystemClock())
    reporter = Reporter(Metrics(), bootstrap_servers, topic_prefix, "host:1", 0.05, lambda: VersionToken(4, 0, "aaaaaaaa"))
    reports.start()
    reporter.start()
    wait_until(lambda: ("host:1", 4) in reports.history(), 120, "a report to arrive", poll_s=0.02)
    reporter.close()
    reports.close()
    assert reports.passed_over == 0
