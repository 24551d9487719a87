"""A row's bytes depend on its own inputs alone."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from infra.index.store import open_index_store
from schemas.errors import Corrupted
from schemas.index.manifest import checkpoint_path
from schemas.model.checkpoint import encode_checkpoint, read_checkpoint
from schemas.model.lsh import encode_signatures
from schemas.model.spec import ModelSpec
from streams.encoder import EncoderCache, RowEncoder
from tests.schemas.model.samples import MM_WIDTH, SPECS, make_items, make_network


def make_encoder(spec: ModelSpec, version: int = 3) -> RowEncoder:
    return RowEncoder(version, read_checkpoint(encode_checkpoint(make_network(spec), "model", {})))


def split(items: list[dict[str, object]]) -> tuple[list[dict[str, object]], list[bytes | None]]:
    """Features and embeddings as a shard stores them."""
    raw = [{k: v for k, v in item.items() if k != "image"} for item in items]
    return raw, [np.array(item["image"], np.float32).tobytes() if "image" in item else None for item in items]


@pytest.mark.parametrize("name", SPECS)
def test_rows_encoded_one_by_one_equal_rows_encoded_at_once(name: str) -> None:
    encoder = make_encoder(SPECS[name])
    raw, embeddings = split(make_items(40, seed=1))
    at_once = encoder.encode(raw, embeddings)
    alone = [encoder.encode([r], [e]) for r, e in zip(raw, embeddings, strict=True)]
    assert at_once.dtype == encoder.layout.dtype
    assert b"".join(row.tobytes() for row in alone) == at_once.tobytes()


def test_only_a_stale_signature_is_made_anew() -> None:
    encoder = make_encoder(SPECS["image_not_an_input"])
    raw, embeddings = split(make_items(4, seed=3))
    old = encoder.encode(raw, embeddings)
    other = [(np.full(MM_WIDTH, i + 1) * (-1) ** np.arange(MM_WIDTH)).astype(np.float32).tobytes() for i in range(4)]
    stale = np.array([True, False, False, True])
    rewritten = encoder.rewrite(old, raw, other, stale)
    fresh = encoder.encode(raw, other)
    assert (rewritten["signature"][stale] == fresh["signature"][stale]).all()
    assert (rewritten["signature"][~stale] == old["signature"][~stale]).all()


@pytest.mark.parametrize("bad", [None, np.ones(MM_WIDTH + 1, np.float32).tobytes(), np.full(MM_WIDTH, np.inf, np.float32).tobytes()])
def test_an_embedding_the_model_cannot_read_counts_as_missing(bad: bytes | None) -> None:
    encoder = make_encoder(SPECS["full"])
    raw, _ = split(make_items(1))
    row = encoder.encode([{**raw[0], "image": [1.0] * MM_WIDTH}], [bad])
    assert row["has_signature"][0] == 0 and not row["signature"].any()
    assert row.tobytes() == encoder.encode(raw, [None]).tobytes()


def test_signatures_are_those_of_equation_5() -> None:
    encoder = make_encoder(SPECS["full"])
    raw, embeddings = split(make_items(5, seed=4))
    rows, known = encoder.encode(raw, embeddings), [np.frombuffer(e, "<f4") for e in embeddings if e is not None]
    expected = encode_signatures(np.stack(known), make_network(SPECS["full"]).w_hash_KM)
    assert (rows["signature"][rows["has_signature"] == 1] == expected).all()


def test_no_items_give_no_rows() -> None:
    encoder = make_encoder(SPECS["no_multimodal"])
    assert encoder.encode([], []).shape == (0,)


def test_a_checkpoint_that_was_damaged_in_the_store_is_named_with_what_to_do(tmp_path: Path) -> None:
    data = bytearray(encode_checkpoint(make_network(SPECS["full"]), "model", {}))
    sha256, store = hashlib.sha256(data).hexdigest(), open_index_store(str(tmp_path))
    data[-1] ^= 1
    store.put_bytes(checkpoint_path(sha256), bytes(data))
    with pytest.raises(
        Corrupted, match=r"checkpoint_damaged: checkpoints/.*the model of version 7, is damaged .*; publish the same checkpoint again"
    ):
        EncoderCache(store).get(7, sha256)
