"""The contents of an index store as retention sees them, and the removal of files (protocol B12).

Invariants: a manifest or snapshot that cannot be read stops the removal, because the files that it names are then unknown. Before a file
whose name may be put again is removed, its time is read: another process may have put the same bytes since the plan was made.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

from infra.index.store import IndexStore, read_many
from infra.index.store_path import if_there
from schemas.errors import Corrupted
from schemas.index.control import ControlState
from schemas.index.manifest import Manifest, decode_manifest, decode_seal, manifest_path
from schemas.index.retention import SEAL_PATH, Removal, RetentionRules, StoreContent, plan_drops, plan_removals
from schemas.index.shard_snapshot import decode_snapshot

T = TypeVar("T")


def read_store_content(store: IndexStore, state: ControlState, used: Collection[str] = ()) -> StoreContent:
    """Everything below `versions`, `snapshots`, `replays` and `checkpoints`; `used`: directories of parts that shards use.

    Files that another process removes at the same moment are left out. Raises Corrupted for a manifest, seal or snapshot that cannot be decoded, and the
    errors of the store.
    """
    files = [file for top in ("checkpoints/", "replays/", "snapshots/", "versions/") for file in store.list_files(top)]
    published = {manifest_path(s.version, s.revision): s.manifest_sha256 for s in state.versions.values()}
    wanted = {(s.version, s.wanted_revision) for s in state.versions.values()}
    manifests: dict[tuple[int, int], Manifest] = {}
    snapshots, seals = [], []
    paths = [file.path for file in files if _is_document(file.path, wanted)]
    for path, raw in zip(paths, read_many(store, paths), strict=True):
        if raw is None:
            continue
        segments, seal = path.split("/"), SEAL_PATH.fullmatch(path)
        if segments[0] == "snapshots" and len(segments) == 4:
            snapshots.append(_decode(store, path, decode_snapshot, raw))
        elif segments[-1] == "manifest.json":
            manifest = _decode(store, path, partial(decode_manifest, expected_sha256=published.get(path)), raw)
            if manifest_path(manifest.version, manifest.revision) == path:
                manifests[manifest.version, manifest.revision] = manifest
        elif seal is not None:
            seals.append(_decode(store, path, partial(decode_seal, path=path), raw))
    return StoreContent(files, manifests, seals, snapshots, used)


def _is_document(path: str, wanted: Collection[tuple[int, int | None]]) -> bool:
    """Whether a file is read for its names of others; of the seals, those of `wanted` (version, revision)."""
    seal = SEAL_PATH.fullmatch(path)
    return path.endswith(".json") and (seal is None or (int(seal[1]), int(seal[2])) in wanted)


def _decode(store: IndexStore, path: str, decode: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return decode(raw)
    except Corrupted as error:
        hint = "no file is removed until it is restored from a copy, or deleted where nothing starts from it"
        raise Corrupted(error.code, f"{path} of {store.url}: {error.message}; {hint}") from error


def describe_removals(store: IndexStore, state: ControlState, rules: RetentionRules, version: int, now_ms: int) -> list[dict[str, Any]]:
    """Which files of a version are no longer needed, by folder and reason, and in how many seconds they go. Only the owner of a shard knows whether the
    shard still uses a part that it has not sealed."""
    folders: dict[tuple[str, str], dict[str, Any]] = {}
    for removal in plan_removals(state, read_store_content(store, state), rules):
        if removal.path.startswith(f"versions/{version}/"):
            folder = removal.path.rpartition("/")[0]
            row = folders.setdefault((folder, removal.why), {"folder": folder, "why": removal.why, "files": 0, "bytes": 0, "in_s": 0})
            row["files"] += 1
            row["bytes"] += removal.size_bytes
            row["in_s"] = max(row["in_s"], (removal.at_ms - now_ms) // 1000)
    if version in plan_drops(state, rules):
        return [{"folder": f"versions/{version}", "why": f"to be dropped: not among the {rules.keep_versions} newest"}, *folders.values()]
    return list(folders.values())


def remove_due(
    store: IndexStore, removals: Iterable[Removal], now_ms: int, rules: RetentionRules, shards: Collection[int]
) -> list[Removal]:
    """Removes the files that are due and belong to one of `shards` or to no shard. Returns the removals that it carried out."""
    removed = []
    for removal in removals:
        if removal.at_ms > now_ms or not (removal.shard is None or removal.shard in shards):
            continue
        file = if_there(partial(store.stat, removal.path))
        if file is not None and not (removal.again and file.put_ms + rules.grace_ms > now_ms):
            store.remove(removal.path)
            removed.append(removal)
    return removed
