"""The project's mapping of online_retail on the real files: the split, the candidates and the plain figures of its description.

The data is not part of the project: put it beside the repository (../shared/data/online_retail) or name it in ONLINE_RETAIL_DIR.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import infra.data
from infra.data.mapping import read_mapping
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.features import Scope

MAPPING = Path(infra.data.__file__).parent / "mappings" / "online_retail.toml"
DATA = Path(os.environ.get("ONLINE_RETAIL_DIR", Path(__file__).parents[4] / "shared" / "data" / "online_retail"))
OCTOBER_MS = 1_317_427_200_000


@pytest.fixture(scope="module")
def retail() -> MeasuredCatalogue:
    if not (DATA / "interactions.parquet").is_file():
        pytest.skip(f"the online_retail data is not in {DATA}; name its folder in ONLINE_RETAIL_DIR")
    return MeasuredCatalogue(read_mapping(MAPPING), DATA)


def test_the_mapping_reads_without_the_data() -> None:
    mapping = read_mapping(MAPPING)
    assert mapping.name == "online_retail" and mapping.model["rank_by"] == "click"


@pytest.mark.campaign
def test_split_candidates_and_popularity_are_those_of_the_description(retail: MeasuredCatalogue) -> None:
    assert len(retail.evaluation().users) == retail.mapping.holdout.users_max
    everybody = retail.mapping.model_copy(update={"holdout": retail.mapping.holdout.model_copy(update={"users_max": 10_000})})
    evaluation = MeasuredCatalogue(everybody, DATA).evaluation()
    assert evaluation.now_ms == OCTOBER_MS
    assert len(evaluation.users) == 1_002 and len(evaluation.users[0].candidates) == 2_509
    assert sum(len(user.relevant) for user in evaluation.users) == 31_675
    recall = []
    for user in evaluation.users:
        best = user.candidates[np.argsort(-evaluation.popularity_of(user.candidates), kind="stable")[:100]]
        recall.append(len(user.relevant & set(best.tolist())) / min(100, len(user.relevant)))
    assert np.mean(recall) == pytest.approx(0.229, abs=2e-3)


@pytest.mark.campaign
def test_items_are_told_as_of_their_version(retail: MeasuredCatalogue) -> None:
    versions = {u.version for u in retail.items()}
    assert max(versions) == OCTOBER_MS and len(versions) == 11
    states, positives = retail.sources.states, retail.sources.positives
    cut = sorted(versions)[5]
    sold = states.numbers_at("sold_28", cut)
    window = (positives.time_X >= cut - 28 * 86_400_000) & (positives.time_X < cut)
    assert sold.sum() == (positives.item_X[window] < len(sold)).sum()


@pytest.mark.campaign
def test_every_item_has_a_title_embedding_and_a_category_and_october_brings_new_ones(retail: MeasuredCatalogue) -> None:
    assert retail.schema.mm_width == 96 and {f.name for f in retail.schema.of(Scope.USER)} == {"country"}
    assert len(list(retail.new_items())) == retail.item_count == 3_630
    arrivals = [u for u, _ in retail.arrivals(50, 0)]
    assert all(u.version > OCTOBER_MS for u in arrivals) and len(retail.rejections) == 0


@pytest.mark.campaign
def test_no_sampled_request_sees_the_evaluation(retail: MeasuredCatalogue) -> None:
    records = list(retail.impressions())
    assert len(records) > 4_000
    assert max(r.time_ms for r in records) == OCTOBER_MS - 28 * 86_400_000
    assert {sum(s.clicked for s in r.items) for r in records} == set(range(1, 13))
    assert all(len(r.items) == 11 * sum(s.clicked for s in r.items) for r in records)
