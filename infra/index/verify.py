"""Verification of a published version from its files alone: checksums, blocks, counts, digests. Every fault is named; none hides another."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from infra.index.parts import find_part_faults, read_full_part, read_incremental_part, read_manifest
from infra.index.store import IndexStore
from schemas.errors import AifError
from schemas.index.control import VersionStatus
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.manifest import Manifest, Seal, checkpoint_path
from schemas.index.retention import StoreFile
from schemas.limits import MIB

QUICK_LOOK_BYTES_MAX = 16 * MIB  # of one checkpoint that a command reads in passing: 20 ms


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of reading a version, and its faults. Without faults the files are those that were published."""

    version: int
    revision: int
    shards: int
    rows: int
    digest: str
    faults: tuple[str, ...]


def verify_version(
    store: IndexStore, status: VersionStatus, on_shard: Callable[[int, int], object] = lambda _done, _of: None
) -> Verification:
    """Read everything that the version's manifest names. `on_shard(done, of)` is called for progress. Raises only when the manifest is unreadable."""
    manifest = read_manifest(store, status)
    fault = _find_checkpoint_fault(store, manifest.checkpoint_sha256)
    faults = [f"checkpoint: {checkpoint_path(manifest.checkpoint_sha256)} {fault}"] if fault else []
    rows = 0
    for done, seal in enumerate(manifest.seals, 1):
        found = _verify_shard(store, manifest, seal)
        faults += [f"shard {seal.shard}: {fault}" for fault in found]
        rows += seal.rows
        on_shard(done, len(manifest.seals))
    shards = [seal.shard for seal in manifest.seals]
    if shards != list(range(len(shards))):
        faults.append(f"manifest: its shards are {shards}, expected 0 to {len(shards) - 1} in order")
    return Verification(manifest.version, manifest.revision, len(shards), rows, manifest.digest, tuple(faults))


class CheckpointFaults:
    """Faults of the store's copies of checkpoints. A file is read at the first look, and again when its size or its time is another.

    Files above `bytes_max` are only looked for, so that a look at all versions costs the same whatever they weigh; `aif doctor` and `verify` read them.
    """

    def __init__(self, store: IndexStore, bytes_max: int = QUICK_LOOK_BYTES_MAX) -> None:
        self._store, self._bytes_max = store, bytes_max
        self._known: dict[str, tuple[StoreFile, str]] = {}  # by sha256: the file that was read, and its fault

    def find(self, versions: Iterable[VersionStatus]) -> dict[int, str]:
        """The fault of each of these versions' checkpoints; a whole one is not named."""
        faults = {status.version: self._look(status.checkpoint_sha256) for status in versions}
        return {version: fault for version, fault in faults.items() if fault}

    def _look(self, sha256: str) -> str:
        path = checkpoint_path(sha256)
        if not self._store.exists(path):
            return "is missing"
        file = self._store.stat(path)
        if file.size_bytes > self._bytes_max:
            return ""
        if self._known.get(sha256, (None, ""))[0] != file:
            self._known[sha256] = file, _find_checkpoint_fault(self._store, sha256)
        return self._known[sha256][1]


def _find_checkpoint_fault(store: IndexStore, sha256: str) -> str:
    path = checkpoint_path(sha256)
    if not store.exists(path):
        return "is missing"
    found = store.sha256(path)
    return "" if found == sha256 else f"is damaged (its sha256 begins with {found[:8]})"


def _verify_shard(store: IndexStore, manifest: Manifest, seal: Seal) -> list[str]:
    """Faults of the files; then those of blocks, counts and digests, as far as the files can be read."""
    faults = [*find_part_faults(store, seal.full), *find_part_faults(store, seal.incremental)]
    digest = ShardDigest(manifest.layout, manifest.model_id, manifest.lsh_version)
    try:
        full = read_full_part(store, seal.full, manifest.layout, verify=False)
        for block in merge_parts(manifest.layout, full, read_incremental_part(store, seal.incremental, verify=False)):
            digest.update(block)
    except AifError as error:
        return [*faults, f"does not read: {error}"]
    compared = (
        ("rows", seal.rows, digest.rows),
        ("digest", seal.digest, digest.hexdigest),
        ("data digest", seal.data_digest, digest.data_hexdigest),
    )
    return faults + [f"{name} is {found}, its seal says {sealed}" for name, sealed, found in compared if sealed != found]
