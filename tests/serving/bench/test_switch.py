"""What `aif bench switch` judges answers by: versions in a store whose scores tell which one they are of."""

import json
from pathlib import Path

import numpy as np

from infra.control_log import ControlLog
from infra.index_parts import read_manifest
from infra.index_store import open_index_store
from schemas.index.layout import row_layout
from schemas.index.manifest import checkpoint_path
from schemas.model.checkpoint import read_checkpoint
from schemas.model.network import AifNetwork
from schemas.model.parameters import parameters_of
from serving.bench.switch import SwitchPlan, judge_answer
from serving.bench.versions import VersionWriter, belongs
from serving.engine.cpu import CpuScorer
from serving.engine.work import UserWork
from serving.index_reader import fill_shard
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


def test_published_versions_load_whole_and_their_scores_lie_in_the_range_of_their_number(tmp_path: Path) -> None:
    store = open_index_store(str(tmp_path))
    writer, log = VersionWriter(store, 2, 2, ITEMS), ControlLog(store)
    for number in range(2):
        assert writer.publish() == number
        status = log.refresh().current
        assert status is not None and status.version == number
        manifest = read_manifest(store, status)
        tables = empty_tables(row_layout(writer.spec), ITEMS)
        for seal in manifest.seals:
            fill_shard(store, manifest, seal, tables)
        assert tables.rows == ITEMS
        network: AifNetwork = read_checkpoint(
            store.local_path(checkpoint_path(manifest.checkpoint_sha256)), manifest.checkpoint_sha256
        ).network
        scorer = CpuScorer(parameters_of(network), number, tables)
        scores_C, _ = scorer.score(scorer.user_state(UserWork()), np.arange(ITEMS), {})
        assert all(belongs(number, score) for score in scores_C.tolist())


def test_a_quick_plan_is_smaller_and_asks_the_same_rate() -> None:
    plan = SwitchPlan()
    assert plan.quick().answers < plan.answers and plan.quick().rate_per_s == plan.rate_per_s and plan.window_s == 15.0
