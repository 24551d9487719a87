"""From sealed shards to a published revision: one manifest by exclusive create, then one `publish` entry (protocol B9).

Invariants: any worker may do any step at any moment, several at once. Of two manifests one is created, and of two entries one is appended. A worker that
finds a manifest without its `publish` writes it. A manifest is never made from an incomplete set of seals, nor from those of another encoder (I9).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from infra.clock import Clock
from infra.failpoints import failpoint
from infra.index.control_log import ControlLog, append_entry
from infra.index.parts import read_manifest
from infra.index.store import IndexStore
from infra.index.store_path import if_there
from schemas.errors import AifError, Corrupted
from schemas.index.control import ControlState, Entry, VersionStatus
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import Manifest, Seal, decode_manifest, decode_seal, encode_manifest, manifest_path
from streams.builders.jobs import BuildBase
from streams.core.version_plans import Revision, plan_revisions
from streams.encoder_protocol import Encoder
from streams.replay.adopted_parts import find_replayed

_NEVER_MS = -(10**18)  # before any interval


@dataclass
class Publication:
    """Writes manifests and log entries in the name of one process (`by`)."""

    control_log: ControlLog
    store: IndexStore
    clock: Clock
    by: str

    # --- manifest ------------------------------------------------------------------------------------------------------

    def read_seals(
        self, status: VersionStatus, wanted: Revision, complain: Callable[[str, str], None] = lambda *_: None
    ) -> dict[int, Seal]:
        """The best seal of each shard that has one: the one whose readers continue from the latest position in index-deltas. Damaged ones are passed over;
        `complain` gets their paths and faults."""
        best: dict[int, Seal] = {}
        for seal in self._list_seals(wanted, complain):
            known = best.get(seal.shard)
            if seal.encoder_fingerprint == status.encoder_fingerprint and (known is None or seal.delta_position > known.delta_position):
                best[seal.shard] = seal
        return best

    def _list_seals(self, wanted: Revision, complain: Callable[[str, str], None] = lambda *_: None) -> Iterator[Seal]:
        for path in self.store.list(f"versions/{wanted.version}/{wanted.revision}/seals/"):
            raw = self.store.get(path)
            try:
                yield decode_seal(raw, path)
            except Corrupted as error:
                complain(path, f"{path}: {error}; its shard seals again, and the file goes once nothing needs it")

    def create_manifest(self, status: VersionStatus, wanted: Revision, encoder: Encoder, seals: Mapping[int, Seal]) -> bytes | None:
        """Creates the manifest from a complete set of seals, and returns its bytes, which `publish` names whatever the disk makes of them; None if another
        worker was faster."""
        raw = encode_manifest(_manifest_of(status, wanted, encoder, seals, self.clock.now_ms()))
        created = self.store.put_exclusive(manifest_path(wanted.version, wanted.revision), raw)
        failpoint("after-manifest")
        return raw if created else None

    def check_manifest(self, status: VersionStatus, wanted: Revision, encoder: Encoder, raw: bytes) -> None:
        """Compare a manifest that was left without its `publish` with the seals. No entry has its checksum yet, but their names have theirs. Raises
        Corrupted (`bad_manifest`)."""
        found = decode_manifest(raw)
        seals = {seal.shard: seal for seal in self._list_seals(wanted) if seal in found.seals}
        if found != _manifest_of(status, wanted, encoder, seals, found.created_ms):
            path = manifest_path(wanted.version, wanted.revision)
            hint = "it is looked at again; if it stays so for a minute, remove it from the store, and it is made again"
            raise Corrupted("bad_manifest", f"{path} is not made of the seals of this revision that the store lists; {hint}")

    def find_base(self, status: VersionStatus, shard: int) -> BuildBase | None:
        """The parts that a build takes rows from: the last published ones, or those of the replay that the version adopts. None: all rows are computed."""
        if status.revision < 0:
            return self._find_replayed(status, shard) if status.cause == Cause.ADOPT else None
        try:
            seal = read_manifest(self.store, status).seals[shard]
        except (AifError, IndexError):
            return None
        return BuildBase(seal.full, seal.incremental)

    def _find_replayed(self, status: VersionStatus, shard: int) -> BuildBase | None:
        replayed = find_replayed(self.store, status.label, status.checkpoint_sha256)
        if replayed is None or replayed.encoder_fingerprint != status.encoder_fingerprint or shard not in replayed.parts:
            return None
        return BuildBase(replayed.parts[shard])

    def starts_late(self, status: VersionStatus, shard: int, next_offsets: Mapping[str, int]) -> bool:
        """Whether readers that continue from the published seal would miss changes if the shard began this version at `next_offsets`. That is so where the
        index store is an older copy, and the shard has stopped the version since."""
        if status.revision < 0 or status.is_reviving:
            return False
        try:
            manifest = if_there(lambda: read_manifest(self.store, status))
        except Corrupted:
            return False
        return manifest is not None and any(next_offsets[topic] > end for topic, end in manifest.seals[shard].source_offsets.items())

    # --- entries -------------------------------------------------------------------------------------------------------

    def publish(self, wanted: Revision, manifest: bytes) -> bool:
        """Writes `publish` for a manifest; whether this call wrote it."""
        digest = hashlib.sha256(manifest).hexdigest()

        def make(state: ControlState) -> Entry | None:
            if state.versions[wanted.version].wanted_revision != wanted.revision:
                return None
            return self._entry(EntryKind.PUBLISH, wanted.version, wanted.revision, manifest_sha256=digest)

        return append_entry(self.control_log, make) is not None

    def revise(self, state: ControlState, interval_ms: int) -> list[Revision]:
        """Wants a new revision of every version whose last publish is older than the interval, by the store's file times (B10), or whose manifest is gone.
        Returns those it wrote."""
        published_ms = {s.version: self._published_ms(manifest_path(s.version, s.revision)) for s in state.receiving if s.revision >= 0}
        return [due for due in plan_revisions(state, published_ms, self.clock.now_ms(), interval_ms) if self._want(due)]

    def _published_ms(self, path: str) -> int:
        """When a manifest was put, long ago if it is gone: the next revision makes one that servers can load."""
        found = if_there(lambda: self.store.stat(path))
        return _NEVER_MS if found is None else found.put_ms

    def _want(self, due: Revision) -> bool:
        def make(state: ControlState) -> Entry | None:
            status = state.versions[due.version]
            if status.next_revision != due.revision or status not in state.receiving:
                return None
            return self._entry(EntryKind.WANT, due.version, due.revision, cause=Cause.REVISE)

        return append_entry(self.control_log, make) is not None

    def _entry(self, kind: EntryKind, version: int, revision: int = 0, cause: str = "", manifest_sha256: str = "") -> Entry:
        now_ms = self.clock.now_ms()
        return Entry(kind, now_ms, self.by, version, revision, cause=cause, manifest_sha256=manifest_sha256)


def _manifest_of(status: VersionStatus, wanted: Revision, encoder: Encoder, seals: Mapping[int, Seal], created_ms: int) -> Manifest:
    return Manifest(
        wanted.version,
        wanted.revision,
        status.model_id,
        status.checkpoint_sha256,
        status.feature_schema,
        encoder.lsh_version,
        status.encoder_fingerprint,
        encoder.layout,
        tuple(seals[shard] for shard in sorted(seals)),
        created_ms,
    )
