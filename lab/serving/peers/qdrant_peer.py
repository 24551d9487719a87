"""Qdrant Edge, in process: the exact dot product of one vector with given ids, best 100. Runs where `qdrant-edge-py` and numpy are installed.

python qdrant_peer.py FOLDER     ids.npy [I], vectors.npy [I, D], requests.npy [R, C]
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import qdrant_edge as qdrant
from answering import answer_lines

TOP_K = 100
_VECTOR = "item"
_BATCH = 20_000


def open_shard(folder: str, ids: np.ndarray, vectors_ID: np.ndarray) -> qdrant.EdgeShard:
    """A shard with all items."""
    vectors = {_VECTOR: qdrant.EdgeVectorParams(size=vectors_ID.shape[1], distance=qdrant.Distance.Dot)}
    shard = qdrant.EdgeShard.create(folder, qdrant.EdgeConfig(vectors=vectors, wal_enabled=False))
    for at in range(0, len(ids), _BATCH):
        pairs = zip(ids[at : at + _BATCH].tolist(), vectors_ID[at : at + _BATCH].astype(np.float32).tolist(), strict=True)
        shard.update(qdrant.UpdateOperation.upsert_points([qdrant.Point(one, {_VECTOR: vector}) for one, vector in pairs]))
    return shard


def search_ms(shard: qdrant.EdgeShard, user: list[float], candidates: list[int]) -> float:
    """One request: ids in, best 100 out."""
    began = time.perf_counter()
    chosen = qdrant.Filter(must=[qdrant.HasIdCondition(set(candidates))])
    exact = qdrant.SearchParams(exact=True)
    found = shard.search(qdrant.SearchRequest(query=qdrant.Query.Nearest(user, using=_VECTOR), filter=chosen, params=exact, limit=TOP_K))
    taken_ms = 1e3 * (time.perf_counter() - began)
    assert len(found) == min(TOP_K, len(candidates)), f"{len(found)} found"
    return taken_ms


def main(folder: Path) -> None:
    """Answers standard input until it ends."""
    ids, vectors_ID = np.load(folder / "ids.npy"), np.load(folder / "vectors.npy")
    requests = np.load(folder / "requests.npy").tolist()
    user = np.random.default_rng(0).standard_normal(vectors_ID.shape[1]).tolist()
    with tempfile.TemporaryDirectory() as store:
        shard = open_shard(store, ids, vectors_ID)
        answer_lines(lambda turn: search_ms(shard, user, requests[turn % len(requests)]))
        shard.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
