"""Reading what a store holds, on an object store's terms: each read takes long, so several are under way."""

import threading
from typing import Any

import pytest

from infra.index.removal import read_store_content
from infra.index.store import IndexStore, read_many
from schemas.errors import Unavailable
from schemas.index.control import ControlState
from schemas.index.shard_snapshot import ShardSnapshot, encode_snapshot, snapshot_manifest_path

AT_ONCE = 8


class SlowStore:
    """A read ends when `AT_ONCE` reads are under way."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._barrier, self._lock = threading.Barrier(AT_ONCE, timeout=5.0), threading.Lock()
        self._running = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, path: str, bytes_max: int = 1 << 20) -> bytes:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        self._barrier.wait()
        with self._lock:
            self._running -= 1
        return self._store.get(path, bytes_max)


def test_snapshots_of_many_shards_are_read_at_once_and_come_in_the_order_of_their_names(store: IndexStore) -> None:
    snapshots = [ShardSnapshot(shard, "", "index", (), {}, shard).named(f"{shard:012x}") for shard in range(8 * AT_ONCE)]
    for snapshot in reversed(snapshots):
        store.put_bytes(snapshot_manifest_path(snapshot.shard, snapshot.unique), encode_snapshot(snapshot))
    slow = SlowStore(store)
    content = read_store_content(slow, ControlState())  # type: ignore[arg-type]
    assert content.snapshots == snapshots and AT_ONCE <= slow.most <= 2 * AT_ONCE


def test_of_several_files_read_at_once_a_missing_one_and_an_error_keep_their_places(
    store: IndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, get = [f"versions/{number}" for number in range(32)], store.get
    for path in paths:
        if path != paths[1]:
            store.put_bytes(path, path.encode())

    def fail_once(path: str, bytes_max: int) -> bytes:
        if path == paths[20]:
            raise Unavailable("store_unreachable", path)
        return get(path, bytes_max)

    monkeypatch.setattr(store, "get", fail_once)
    read = read_many(store, paths)
    assert [next(read) for _ in range(20)] == [None if path == paths[1] else path.encode() for path in paths[:20]]
    with pytest.raises(Unavailable, match=paths[20]):
        next(read)
