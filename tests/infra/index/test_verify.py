"""Verification names every fault of a version, wherever it is."""

import dataclasses
import hashlib
import os

import pytest

from infra.index.control_log import ControlLog
from infra.index.store import FolderStore
from infra.index.verify import CheckpointFaults, verify_version
from schemas.errors import Corrupted
from schemas.index.manifest import Manifest, checkpoint_path, encode_manifest, manifest_path
from tests.infra.index_fixture import publish_version


@pytest.fixture
def manifest(store: FolderStore) -> Manifest:
    return publish_version(store)


def _faults(store: FolderStore) -> tuple[str, ...]:
    current = ControlLog(store).refresh().current
    assert current is not None
    return verify_version(store, current).faults


def test_a_whole_version_has_no_faults_and_its_counts(store: FolderStore, manifest: Manifest) -> None:
    current = ControlLog(store).refresh().current
    assert current is not None
    shards: list[tuple[int, int]] = []
    found = verify_version(store, current, lambda done, of: shards.append((done, of)))
    assert (found.faults, found.shards, found.rows, found.digest) == ((), 2, manifest.rows, manifest.digest)
    assert shards == [(1, 2), (2, 2)]


def test_every_damaged_file_is_named_at_once(store: FolderStore, manifest: Manifest) -> None:
    first, second = manifest.seals
    flipped = f"{first.full.directory}/{first.full.files[0].name}"
    data = bytearray(store.local_path(flipped).read_bytes())
    data[len(data) // 2] ^= 4
    store.local_path(flipped).write_bytes(data)
    missing = f"{second.incremental.directory}/{second.incremental.files[-1].name}"
    store.remove(missing)
    os.truncate(store.local_path(checkpoint_path(manifest.checkpoint_sha256)), 3)
    faults = "\n".join(_faults(store))
    for path in (flipped, missing, checkpoint_path(manifest.checkpoint_sha256)):
        assert path in faults
    assert "shard 0" in faults and "shard 1" in faults


def test_a_look_in_passing_reads_no_large_checkpoint_and_a_whole_look_does(store: FolderStore, manifest: Manifest) -> None:
    state, path = ControlLog(store).refresh(), checkpoint_path(manifest.checkpoint_sha256)
    size = store.stat(path).size_bytes
    store.local_path(path).write_bytes(b"\0" * size)
    assert CheckpointFaults(store, size - 1).find(state.receiving) == {}, "how long it takes must not grow with the file"
    assert "is damaged" in CheckpointFaults(store, size).find(state.receiving)[manifest.version]
    store.remove(path)
    assert CheckpointFaults(store, size - 1).find(state.receiving) == {manifest.version: "is missing"}


def test_rows_that_are_not_the_sealed_ones_are_seen_by_the_digest(store: FolderStore, manifest: Manifest) -> None:
    """A seal that claims other content, with files that are whole: only reading every row can tell."""
    lying = dataclasses.replace(manifest.seals[0], rows=manifest.seals[0].rows + 1, digest="0" * 32)
    raw = encode_manifest(dataclasses.replace(manifest, seals=(lying, manifest.seals[1])))
    store.local_path(manifest_path(manifest.version, 0)).write_bytes(raw)
    current = ControlLog(store).refresh().current
    assert current is not None
    found = verify_version(store, dataclasses.replace(current, manifest_sha256=hashlib.sha256(raw).hexdigest()))
    assert [f.split(" is ")[0] for f in found.faults] == ["shard 0: rows", "shard 0: digest"]


def test_a_truncated_manifest_is_corrupted(store: FolderStore, manifest: Manifest) -> None:
    path = store.local_path(manifest_path(manifest.version, 0))
    os.truncate(path, path.stat().st_size - 10)
    with pytest.raises(Corrupted, match="bad_manifest"):
        _faults(store)
