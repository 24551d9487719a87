"""Which files of an index store may be removed, and from when on. Values and three pure plans; the worker performs them, `aif index show` prints them.

    plan_freezes   -> published versions that get no more increments, because newer ones are published
    plan_drops     -> versions that are dropped for good: frozen ones beyond the K newest
    plan_removals  -> every file that nothing needs, with the time from which it may go, in the order of removal

Invariants (protocol B12):
- A version that is wanted, published, live, backup or pinned is never dropped. During a hold only versions newer than the live one are: without an end, each
  checkpoint would add one.
- A file that a kept manifest, a kept snapshot, an open build or a shard names is never removed. A manifest is kept as long as its version. After the next
  revision or the version's end it stays for the grace period, because a reader may have begun with it.
- No part of a version is removed while its published manifest is not among the files. It may be lost and come back from a copy, or a list of the store may be
  older than it.
- A file that nothing names (a part of a crashed build) is kept for the grace period, by the store's own clock. Its writer may still run.
- Nothing depends on the latest put of a file in a part or a snapshot. A folder store links these files, so several directories share a file and its time,
  and each snapshot of a shard sets the time of all. No writer puts the names of these directories again. They are as old as their oldest file.
- The manifest goes before the files that it names, so no reader begins with a version that is being removed.
- Paths that this code does not know are never removed, nor is anything of a version that the log does not know. Old entries of the
  control log go by a rule of their own (infra/index/control_folds.py).
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from schemas.index.control import ControlState, VersionStatus
from schemas.index.lifecycle import FINAL, SERVABLE, State
from schemas.index.manifest import Manifest, Seal, checkpoint_path, manifest_path
from schemas.index.shard_snapshot import ShardSnapshot, snapshot_manifest_path

SEAL_PATH = re.compile(r"versions/(\d+)/(\d+)/seals/(\d{5})-[^/]+\.json")  # version, revision, shard
_PART = re.compile(r"(versions/(\d+)/(?:full|\d+/incremental)/(\d{5})-[^/]+)/[^/]+")
_SAMPLE = re.compile(r"versions/(\d+)/(\d+)/samples/(\d{5})-[^/]+")
_MANIFEST = re.compile(r"versions/(\d+)/(\d+)/manifest\.json")
_OF_VERSION = re.compile(r"versions/(\d+)/.+")
_SNAPSHOT = re.compile(r"(snapshots/(\d{5})/[^/]+)/.+")
_REPLAY = re.compile(r"(replays/[^/]+)/.+")
_CHECKPOINT = re.compile(r"checkpoints/[0-9a-f]{64}\.safetensors")

PUBLISHED_KEPT = 2  # the newest, and one to promote if the canary withholds the newest


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """`keep_versions` newest ones stay promotable, `keep_snapshots` newest of a shard stay usable; `grace_ms` is for whoever reads or writes now."""

    keep_versions: int
    grace_ms: int
    keep_snapshots: int = 2


@dataclass(frozen=True, slots=True)
class StoreFile:
    """A file of the store, when it was put by the store's clock, and its size."""

    path: str
    put_ms: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Removal:
    """A file that nothing needs. It may be removed from `at_ms` on. `shard`: whose owner removes it; None: any worker. `again`: its name may be put again."""

    path: str
    at_ms: int
    why: str
    shard: int | None = None
    size_bytes: int = 0
    again: bool = True


@dataclass(frozen=True)
class StoreContent:
    """The contents of a store: its files, and the names in those files that name others.

    manifests by (version, revision); open_seals of revisions that are wanted and not published; `used`: directories that shards use.
    """

    files: Sequence[StoreFile]
    manifests: Mapping[tuple[int, int], Manifest] = field(default_factory=dict)
    open_seals: Sequence[Seal] = ()
    snapshots: Sequence[ShardSnapshot] = ()
    used: Collection[str] = ()


def plan_freezes(state: ControlState) -> list[int]:
    """Published versions that are not among the newest `PUBLISHED_KEPT`, oldest first. Those stay that an operator approved, or revived to go live.

    While an operator holds or pins, or the canary withholds each version, none is promoted, and checkpoints still come."""
    if state.unknown_entry:
        return []
    published = sorted((s for s in state.versions.values() if s.state is State.PUBLISHED), key=lambda s: -s.version)
    older = (s for s in published[PUBLISHED_KEPT:] if s.wanted_revision is None and s.version != state.pinned)
    return sorted(s.version for s in older if not (s.approved or s.wish))


def plan_drops(state: ControlState, rules: RetentionRules) -> list[int]:
    """Frozen versions that are not among the newest `keep_versions` that could be served or revived, oldest first. During a hold, only those that are newer
    than the live one and that servers did not turn away."""
    if state.unknown_entry:
        return []
    promotable = sorted((s for s in state.versions.values() if s.state in SERVABLE or s.state is State.FROZEN), key=lambda s: -s.version)
    beyond = promotable[rules.keep_versions :]
    frozen = (s for s in beyond if s.state is State.FROZEN and s.wanted_revision is None and s.version != state.pinned)
    return sorted(s.version for s in frozen if not state.held or (state.live is not None and s.version > state.live and not s.turned_away))


def plan_removals(state: ControlState, content: StoreContent, rules: RetentionRules) -> list[Removal]:
    """Every file that nothing needs, manifests first. Files that are needed are not in the list."""
    if state.unknown_entry:
        return []
    plan = _Plan(state, content, rules)
    judged = [(file, removal) for file in content.files if (removal := plan.judge(file)) is not None]
    removals = [dataclasses.replace(r, at_ms=max(r.at_ms, file.put_ms + rules.grace_ms)) if r.again else r for file, r in judged]
    return sorted(removals, key=lambda r: (not r.path.endswith(".json"), r.path))


class _Plan:
    """Times of expiry, worked out once for all files."""

    def __init__(self, state: ControlState, content: StoreContent, rules: RetentionRules) -> None:
        self._state, self._content, self._rules = state, content, rules
        self._put_ms = {f.path: f.put_ms for f in content.files}
        self._snapshot_expiry = self._expire_snapshots()
        self._expiry: dict[str, int] = {}  # of directories that an expiring manifest or snapshot names: with the last of them
        self._kept: set[str] = set(content.used)
        for seal in content.open_seals:
            self._name((seal.full.directory, seal.incremental.directory), None)
        for (version, revision), manifest in content.manifests.items():
            expiry = self._expire_manifest(version, revision)
            self._name([p.directory for s in manifest.seals for p in (s.full, s.incremental)], expiry)
        for snapshot in content.snapshots:
            alive = [directory for directory in snapshot.parts if self._is_alive(directory)]
            self._name(alive, self._snapshot_expiry[snapshot.directory])
        self._put_at_ms = self._put_directories()

    def _is_alive(self, directory: str) -> bool:
        """A shard that starts from a snapshot forgets versions that are over before it reads any part."""
        named = _OF_VERSION.fullmatch(directory)
        return named is not None and int(named[1]) in self._state.versions and not self._state.is_over(int(named[1]))

    def _lacks_manifest(self, status: VersionStatus) -> bool:
        """Whether the published manifest of a version was not among the files, so that nothing says which parts it names."""
        published = status.revision >= 0 and status.state not in FINAL
        return published and (status.version, status.revision) not in self._content.manifests

    def _name(self, directories: Collection[str], expiry: int | None) -> None:
        for directory in directories:
            if expiry is None:
                self._kept.add(directory)
            else:
                self._expiry[directory] = max(expiry, self._expiry.get(directory, 0))

    def _put_directories(self) -> dict[str, int]:
        """When each directory was put: parts and snapshots by their oldest file, replays by their newest."""
        put: dict[str, int] = {}
        for path, put_ms in self._put_ms.items():
            if matched := _PART.fullmatch(path) or _SNAPSHOT.fullmatch(path):
                put[matched[1]] = min(put_ms, put.get(matched[1], put_ms))
            elif matched := _REPLAY.fullmatch(path):
                put[matched[1]] = max(put_ms, put.get(matched[1], 0))
        return put

    def _expire_manifest(self, version: int, revision: int) -> int | None:
        """When a manifest may go; None: not as things stand."""
        put_ms, grace_ms = self._put_ms.get(manifest_path(version, revision), 0), self._rules.grace_ms
        if self._state.is_over(version):
            return max(put_ms, self._ended_ms(version)) + grace_ms
        status = self._state.versions.get(version)
        if status is None or revision >= status.revision:  # the published one, and one that is on its way
            return None
        followers = [r for v, r in self._content.manifests if v == version and revision < r <= status.revision]
        return None if not followers else self._put_ms.get(manifest_path(version, min(followers)), 0) + grace_ms

    def _ended_ms(self, version: int) -> int:
        """When a version ended; 0 if it did not, or so long ago that the log's fold has forgotten it."""
        status = self._state.versions.get(version)
        return 0 if status is None else status.ended_at_ms

    def _expire_snapshots(self) -> dict[str, int | None]:
        """By directory. The newest of each shard are kept; an older one goes a grace period after the one that pushed it out."""
        expiry: dict[str, int | None] = {}
        put_of = {s.directory: self._put_ms.get(snapshot_manifest_path(s.shard, s.unique), 0) for s in self._content.snapshots}
        for shard in {s.shard for s in self._content.snapshots}:
            ordered = sorted((s.directory for s in self._content.snapshots if s.shard == shard), key=lambda d: (-put_of[d], d))
            for place, directory in enumerate(ordered):
                kept = place < self._rules.keep_snapshots
                expiry[directory] = None if kept else put_of[ordered[place - self._rules.keep_snapshots]] + self._rules.grace_ms
        return expiry

    def judge(self, file: StoreFile) -> Removal | None:
        """The removal of a file, or None when it is needed or not known."""
        path = file.path
        if part := _PART.fullmatch(path):
            return self._judge_part(file, part[1], int(part[2]), int(part[3]))
        if seal := SEAL_PATH.fullmatch(path):
            return self._judge_seal(file, int(seal[1]), int(seal[2]), int(seal[3]))
        if sample := _SAMPLE.fullmatch(path):
            return self._judge_sample(file, int(sample[1]), int(sample[2]), int(sample[3]))
        if manifest := _MANIFEST.fullmatch(path):
            expiry = self._expire_manifest(int(manifest[1]), int(manifest[2]))
            return None if expiry is None else Removal(path, expiry, "a revision that was replaced or dropped", None, file.size_bytes)
        if snapshot := _SNAPSHOT.fullmatch(path):
            return self._judge_snapshot(file, snapshot[1], int(snapshot[2]))
        if replay := _REPLAY.fullmatch(path):  # only ever a help: a version that adopts it without finding it computes its rows
            at_ms = self._put_at_ms[replay[1]] + self._rules.grace_ms
            return Removal(path, at_ms, "a replay that was adopted or given up", None, file.size_bytes)
        return self._judge_checkpoint(file) if _CHECKPOINT.fullmatch(path) else None

    def _judge_part(self, file: StoreFile, directory: str, version: int, shard: int) -> Removal | None:
        status = self._state.versions.get(version)
        is_known = status is not None or self._state.is_over(version)
        if not is_known or directory in self._kept or (status is not None and (_is_open(status) or self._lacks_manifest(status))):
            return None
        named_until = self._expiry.get(directory)
        unnamed_at = max(self._put_at_ms[directory], self._ended_ms(version)) + self._rules.grace_ms
        why = "an unfinished build" if named_until is None else "a revision that was replaced or dropped"
        return Removal(file.path, max(unnamed_at, named_until or 0), why, shard, file.size_bytes, again=False)

    def _judge_seal(self, file: StoreFile, version: int, revision: int, shard: int) -> Removal | None:
        """A seal is in its manifest once there is one; before that it belongs to an open build, or to none."""
        status = self._state.versions.get(version)
        if status is None and not self._state.is_over(version):
            return None
        if status is not None and _is_open(status) and revision > status.revision:
            return None
        at_ms = max(file.put_ms, self._ended_ms(version)) + self._rules.grace_ms
        return Removal(file.path, at_ms, "a seal that its manifest contains, or that no manifest took", shard, file.size_bytes)

    def _judge_sample(self, file: StoreFile, version: int, revision: int, shard: int) -> Removal | None:
        """A sample stays as long as the manifest of its revision: an operator may hold, and the canary reads it later."""
        expiry = self._expire_manifest(version, revision)
        return None if expiry is None else Removal(file.path, expiry, "a revision that was replaced or dropped", shard, file.size_bytes)

    def _judge_snapshot(self, file: StoreFile, directory: str, shard: int) -> Removal | None:
        if directory in self._snapshot_expiry:
            expiry, why = self._snapshot_expiry[directory], "an older snapshot"
        else:
            expiry, why = self._put_at_ms[directory] + self._rules.grace_ms, "an unfinished snapshot"
        return None if expiry is None else Removal(file.path, expiry, why, shard, file.size_bytes, again=False)

    def _judge_checkpoint(self, file: StoreFile) -> Removal | None:
        users = [s for s in self._state.versions.values() if s.checkpoint_sha256 and checkpoint_path(s.checkpoint_sha256) == file.path]
        if any(s.state not in FINAL for s in users):
            return None
        at_ms = max([file.put_ms, *(s.ended_at_ms for s in users)]) + self._rules.grace_ms
        return Removal(file.path, at_ms, "a checkpoint of no version", None, file.size_bytes)


def _is_open(status: VersionStatus) -> bool:
    """Whether a worker builds or seals a revision of this version now: then its parts may all be in use."""
    return status.wanted_revision is not None and status.state not in FINAL
