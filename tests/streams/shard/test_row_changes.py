"""The contract of an encoder with a shard, which the real one and the tests' stand-in keep. A shard over the real one rewrites without the network exactly
the rows that it would have encoded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from schemas.model.checkpoint import encode_checkpoint, read_checkpoint
from schemas.model.lsh import make_w_hash
from schemas.model.network import AifNetwork
from streams.encoder import RowEncoder
from tests.streams.shard_world import (
    ITEMS,
    SPEC,
    HashEncoder,
    ManualClock,
    embed,
    features_record,
    new_items_record,
    open_test_shard,
    rows_of,
    upsert,
)

RAW: list[dict[str, Any]] = [{"brand": f"b{i % 3}", "category": f"c{i % 2}", "price": 1.0 + i, "stock": i} for i in range(7)]
EMBEDDINGS = [None if i % 3 == 2 else np.array([i, 1, -2, 0.5], np.float32).tobytes() for i in range(7)]


def real_encoder(version: int = 0) -> RowEncoder:
    torch.manual_seed(version)
    network = AifNetwork(SPEC, make_w_hash(version, SPEC.hash_bits, SPEC.schema.mm_width))
    return RowEncoder(version, read_checkpoint(encode_checkpoint(network, "model", {})))


@pytest.fixture(params=["stand-in", "real"])
def encoder(request: pytest.FixtureRequest) -> RowEncoder | HashEncoder:
    return real_encoder() if request.param == "real" else HashEncoder(0)


def changed(old: np.ndarray, new: np.ndarray) -> set[str]:
    return {name for name in old.dtype.names or () if old[name].tobytes() != new[name].tobytes()}


def test_an_encoder_says_what_it_is_and_rows_have_its_layout(encoder: RowEncoder | HashEncoder) -> None:
    rows = encoder.encode(RAW, EMBEDDINGS)
    assert rows.dtype == encoder.layout.dtype and rows.shape == (7,)
    assert encoder.version == 0 and len(encoder.checkpoint_sha256) == 64 and encoder.fingerprint and encoder.spec == SPEC
    assert rows["has_signature"].tolist() == [int(e is not None) for e in EMBEDDINGS]


def test_a_row_depends_on_its_own_inputs_alone(encoder: RowEncoder | HashEncoder) -> None:
    rows = encoder.encode(RAW, EMBEDDINGS)
    assert encoder.encode(RAW[3:4], EMBEDDINGS[3:4])[0].tobytes() == rows[3].tobytes()
    assert encoder.encode(RAW[::-1], EMBEDDINGS[::-1])[::-1].tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    ("features", "columns"),
    [
        ({"brand": "other"}, {"vector", "bridge"}),
        ({"category": "other"}, {"vector", "bridge", "category"}),
        ({"price": 99.0}, {"bid"}),
        ({"stock": 99}, {"realtime"}),
        ({"title": "irrelevant"}, set()),
    ],
)
def test_a_feature_changes_exactly_the_columns_that_the_staleness_table_says(
    encoder: RowEncoder | HashEncoder, features: dict[str, Any], columns: set[str]
) -> None:
    old, new = encoder.encode(RAW, EMBEDDINGS), encoder.encode([{**raw, **features} for raw in RAW], EMBEDDINGS)
    assert changed(old, new) == columns


def test_a_rewrite_gives_the_bits_of_an_encode_where_no_input_of_the_network_changed(encoder: RowEncoder | HashEncoder) -> None:
    old = encoder.encode(RAW, EMBEDDINGS)
    later = [{**raw, "price": 50.0 + i, "stock": 3} for i, raw in enumerate(RAW)]
    embeddings = [np.array([1, 1, 1, float(i)], np.float32).tobytes() if i % 2 else e for i, e in enumerate(EMBEDDINGS)]
    stale = np.array([bool(i % 2) for i in range(7)])
    assert encoder.rewrite(old, later, embeddings, stale).tobytes() == encoder.encode(later, embeddings).tobytes()


def test_a_shard_over_the_real_encoder_ends_with_the_same_rows_step_by_step_and_in_one_batch(tmp_path: Path) -> None:
    features = [
        features_record(k, *(upsert(i, k, brand="b", category=f"c{i % 3}", price=1.0 + k, stock=k) for i in ITEMS[:9])) for k in range(4)
    ]
    embeddings = [new_items_record(k, *(embed(i, i, k, 1, -1) for i in ITEMS[:5])) for k in range(2)]
    work = []
    rows = []
    for name, runs in (("steps", [[r] for r in (*features, *embeddings)]), ("one", [[*embeddings, *features]])):
        shard = open_test_shard(tmp_path / name, ManualClock())
        shard.start_version(real_encoder(), {})
        results = [shard.apply(run) for run in runs]
        work.append({cause: sum(r.work[cause] for r in results) for cause in ("rows_encoded", "rows_rewritten")})
        rows.append(rows_of(shard, 0))
        shard.close()
    assert work == [{"rows_encoded": 9, "rows_rewritten": 27 + 10}, {"rows_encoded": 9, "rows_rewritten": 0}]
    assert rows[0] == rows[1]
