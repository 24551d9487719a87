"""What `aif bench switch` judges answers by: versions in a store whose scores tell which one they are of. What fails meanwhile ends it."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from infra.index.control_log import ControlLog
from infra.index.parts import read_manifest
from infra.index.store import open_index_store
from infra.processes import free_ports
from lab.serving import switch
from lab.serving.switch import Judged, MixedPlan, SwitchPlan, judge_answer
from lab.serving.versions import VersionWriter, belongs
from schemas.errors import Unavailable
from schemas.index.layout import row_layout
from schemas.index.manifest import checkpoint_path
from schemas.model.checkpoint import read_checkpoint
from schemas.model.parameters import parameters_of
from serving.engine.devices.cpu import CpuScorer
from serving.engine.work import UserWork
from serving.versions.loader_process import fill_shard
from tests.serving.engine.samples import empty_tables

ITEMS = 300


def answer(version: int, *scores: float) -> bytes:
    items = [{"item_id": at, "score": score, "probabilities": [0.5]} for at, score in enumerate(scores)]
    body = {"request_id": "r", "version_token": f"{version}.0-00000000", "rung": "cached", "degraded": [], "items": items}
    body |= {"candidates": 2, "unknown_count": 0, "unknown_items": [], "freshness": {"age_s": None, "watermark": []}, "took_ms": 1.0}
    return json.dumps(body).encode()


def test_an_answer_with_a_score_of_another_version_is_mixed() -> None:
    assert judge_answer(answer(4, 0.3, 0.9)) == (4, True)
    assert judge_answer(answer(5, 7e5, 9e5)) == (5, True)
    assert judge_answer(answer(4, 0.3, 7e5)) == (4, False) and judge_answer(answer(5, 7e5, 0.3)) == (5, False)
    assert judge_answer(answer(5, 0.3, 0.9)) == (5, False), "another version's rows under this version's name"


def test_of_many_answers_those_that_mix_are_counted_and_one_without_scores_is_no_answer() -> None:
    def raw(version: int, *scores: float) -> bytes:
        header = {"parameters": {"version_token": f"{version}.0-00000000"}, "outputs": []}
        return json.dumps(header).encode() + np.array(scores, "<f4").tobytes()

    judged = Judged(((0.0, 0.25), (5e5, 2e6)))
    for body in (raw(0, 0.1, 0.2), raw(3, 6e5), raw(3, 6e5, 0.1), raw(2, 0.5), raw(1, 1e5)):
        judged.add(body)
    assert (judged.answers, judged.mixed, judged.versions) == (5, 3, {0, 1, 2, 3})
    with pytest.raises(ValueError, match="without scores"):
        judged.add(raw(1))


def test_a_version_that_cannot_be_published_ends_the_bench_and_a_server_without_answers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the latency at rest would be compared with itself, and of no answers none would be mixed."""
    writer = VersionWriter(open_index_store(str(tmp_path)), 2, 2, ITEMS)
    monkeypatch.setattr(switch, "_WINDOW_S", 0.1)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(Unavailable, match="no answer in"):
        asyncio.run(switch._send_all(url, writer, MixedPlan(every_s=60.0), Judged(writer.ranges)))
    assert writer.next_version == 1
    monkeypatch.setattr(writer, "_store", SimpleNamespace(put_exclusive=lambda *_: (_ for _ in ()).throw(OSError("no space left"))))

    async def publish() -> None:
        async with writer.publishing(60.0):
            await asyncio.sleep(0.01)

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(publish())


def test_published_versions_load_whole_and_a_score_lies_in_a_range_only_where_rows_and_model_are_of_that_version(tmp_path: Path) -> None:
    store = open_index_store(str(tmp_path))
    writer, log = VersionWriter(store, 2, 2, ITEMS, two_models=True), ControlLog(store)
    loaded = []
    for number in range(2):
        assert writer.publish() == number
        status = log.refresh().current
        assert status is not None and status.version == number
        manifest = read_manifest(store, status)
        tables = empty_tables(row_layout(writer.spec), ITEMS)
        for seal in manifest.seals:
            fill_shard(store, manifest, seal, tables)
        assert tables.rows == ITEMS
        path = store.local_path(checkpoint_path(manifest.checkpoint_sha256))
        loaded.append((tables, parameters_of(read_checkpoint(path, manifest.checkpoint_sha256).network)))
    for rows, (tables, _) in enumerate(loaded):
        for model, (_, parameters) in enumerate(loaded):
            scorer = CpuScorer(parameters, rows, tables)
            scores_C, _ = scorer.score(scorer.user_state(UserWork()), np.arange(ITEMS), {})
            for version in range(2):
                assert {belongs(version, [score]) for score in scores_C.tolist()} == {version == rows}, (
                    "rows alone, where there is one model"
                )
                assert {belongs(version, [score], writer.ranges) for score in scores_C.tolist()} == {version == rows == model}


def test_a_quick_plan_is_smaller_and_asks_the_same_rate() -> None:
    plan = SwitchPlan()
    assert plan.quick().answers < plan.answers and plan.quick().rate_per_s == plan.rate_per_s and plan.window_s == 15.0
