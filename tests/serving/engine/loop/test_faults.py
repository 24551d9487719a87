"""Faults of the engine's thread and of a device: the engine continues, its status says what happened, a lost device is replaced by the CPU."""

import math
import threading

import numpy as np
import pytest

from infra.processes import wait_until
from serving.engine.devices.cpu import CpuScorer
from serving.engine.devices.scorer import GuardedScorer
from serving.engine.loop.engine import Engine
from serving.engine.loop.resident import ChangeBatch
from serving.engine.tables.tables import Applied
from serving.engine.work import RankWork, UserWork
from tests.infra.threads import raise_in
from tests.schemas.model.samples import SPECS
from tests.serving.engine.loop.test_loop import assert_is_reference, changes_at
from tests.serving.engine.samples import CONTEXT, PROFILE, Version, make_behaviours, make_version

WAIT_S = 30.0
LOST = RuntimeError("CUDA error: an illegal memory access was encountered")
FULL = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


class FakeDevice(CpuScorer):
    """Scores as the CPU does, until its device fails with `fails`."""

    fails: RuntimeError | None = None

    def score(self, *work):
        if self.fails is not None:
            raise self.fails
        return super().score(*work)

    def on_applied(self, applied: Applied) -> None:
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def version() -> Version:
    return make_version(SPECS["full"])


@pytest.fixture
def engine():
    made = Engine()
    made.start()
    yield made
    made.close()


def engine_thread() -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == "engine")


def ask(engine: Engine, version: Version):
    user = UserWork(PROFILE, make_behaviours(version, 30))
    return engine.submit_rank(RankWork(version.ids, 20, user=user, context=CONTEXT))


def check(engine: Engine, version: Version) -> None:
    assert_is_reference(ask(engine, version).result(WAIT_S), version, make_behaviours(version, 30), range(len(version.ids)), 20)


def test_the_engine_is_busy_from_the_request_to_its_answer_and_not_after(engine: Engine, version: Version) -> None:
    engine.install(version.resident()).result(WAIT_S)
    seen, gate = list[bool](), threading.Event()
    engine.run(gate.wait)
    answered = ask(engine, version)
    answered.add_done_callback(lambda _: seen.append(engine.busy))
    assert engine.busy  # it waits
    gate.set()
    answered.result(WAIT_S)
    wait_until(lambda: not engine.busy, WAIT_S, "the engine to be idle")
    assert seen == [True]  # it was being done


def test_the_engine_survives_what_would_end_its_thread_and_counts_it(engine: Engine, version: Version) -> None:
    engine.install(version.resident()).result(WAIT_S)
    raise_in(engine_thread(), SystemExit)
    wait_until(lambda: engine.status().faults == 1, WAIT_S, "the fault to be counted")
    assert "SystemExit" in engine.status().last_fault
    check(engine, version)

    def exit_now() -> None:
        raise SystemExit(7)

    with pytest.raises(SystemExit):
        engine.run(exit_now).result(WAIT_S)
    wait_until(lambda: engine.status().faults == 2, WAIT_S, "the fault to be counted")
    check(engine, version)


def test_the_requests_of_a_turn_that_fails_get_its_error_and_later_ones_an_answer(engine: Engine, version: Version) -> None:
    resident = version.resident()

    class Exits(CpuScorer):
        def score(self, *_):
            raise SystemExit(7)

    held, whole = threading.Event(), resident.scorer
    resident.scorer = Exits(version.parameters, 1, version.tables)
    engine.install(resident).result(WAIT_S)
    engine.run(lambda: held.wait(WAIT_S))
    asked = [ask(engine, version) for _ in range(3)]
    held.set()
    assert all(isinstance(future.exception(WAIT_S), SystemExit) for future in asked)
    resident.scorer = whole
    check(engine, version)


def test_a_change_that_fails_after_its_rows_stops_the_changes_of_that_version_and_not_the_engine(engine: Engine, version: Version) -> None:
    resident = version.resident()
    engine.install(resident).result(WAIT_S)
    batch = changes_at(version, resident.version, [0], version.rows[1:2], 5)
    engine.offer_changes(ChangeBatch(resident.version, 0, batch.changes, 1, {"item-features": None}, 77))  # type: ignore[dict-item] # the watermark fails
    wait_until(lambda: engine.status().faults == 1, WAIT_S, "the fault to be counted")
    assert "partition 0" in resident.error
    assert ask(engine, version).result(WAIT_S).ids


def test_the_age_of_the_last_turn_shows_an_engine_that_hangs(engine: Engine) -> None:
    held = threading.Event()
    assert Engine().status().turn_age_s == 0.0, "it has not started"
    hanging = engine.run(lambda: held.wait(WAIT_S))
    wait_until(lambda: engine.status().turn_age_s > 0.6, WAIT_S, "the turn to get old")
    held.set()
    hanging.result(WAIT_S)
    wait_until(lambda: engine.status().turn_age_s < 0.6, WAIT_S, "the next turn")
    assert not math.isinf(engine.status().turn_age_s)


def guarded(version: Version, fails: RuntimeError | None) -> GuardedScorer:
    def open_device() -> FakeDevice:
        scorer = FakeDevice(version.parameters, 1, version.tables)
        scorer.fails = fails
        return scorer

    return GuardedScorer(open_device, lambda: CpuScorer(version.parameters, 1, version.tables))


def test_when_the_device_is_lost_the_cpu_answers_that_request_and_all_later_ones(engine: Engine, version: Version) -> None:
    resident = version.resident()
    resident.scorer = guarded(version, None)
    engine.install(resident).result(WAIT_S)
    check(engine, version)
    assert engine.status().residents[0].device_error == ""
    resident.scorer._scorer.fails = LOST
    check(engine, version)
    report = engine.status().residents[0]
    assert "illegal memory access" in report.device_error and engine.status().failed == 0


def test_when_the_device_is_lost_changes_of_rows_are_applied_all_the_same(engine: Engine, version: Version) -> None:
    resident = version.resident()
    resident.scorer = guarded(version, LOST)
    engine.install(resident).result(WAIT_S)
    engine.offer_changes(changes_at(version, resident.version, [0], version.rows[1:2], 5))
    wait_until(lambda: resident.changes_applied == 1, WAIT_S, "the change to be applied")
    assert not resident.error and engine.status().residents[0].device_error


def test_a_device_that_cannot_be_opened_is_lost_and_one_without_memory_is_not(engine: Engine, version: Version) -> None:
    def no_device() -> FakeDevice:
        raise LOST

    scorer = GuardedScorer(no_device, lambda: CpuScorer(version.parameters, 1, version.tables))
    assert scorer.device_error and scorer.tiers_by == "compiled"
    resident = version.resident()
    resident.scorer = guarded(version, FULL)
    engine.install(resident).result(WAIT_S)
    with pytest.raises(RuntimeError, match="out of memory"):
        ask(engine, version).result(WAIT_S)
    resident.scorer._scorer.fails = None
    check(engine, version)
    assert np.isfinite(engine.status().turn_age_s)
