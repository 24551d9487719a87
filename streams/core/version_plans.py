"""The next actions for the versions of an index, planned from the folded control log and from facts about shards. Pure.

Invariants:
- A plan depends on the log, the shard and the clock alone, never on earlier actions of this process. After a restart at any point the same actions are
  planned again, and doing one twice is harmless.
- Every action of a shard needs the result of the previous one, which the shard records. It does not build without `building v` (B6). It does not seal
  without a full part, nor before it has applied the records that its partitions had when it first saw the version (B7).
- A shard whose encoder is not the one of `want v` marks v behind and writes no row of it (B5). The same holds where the store has lost the checkpoint
  of v, except for the served version: the shards wait for its checkpoint, until another version is wanted.
- Nothing is planned from a log that has an entry this code does not know (B2).
- A frozen version that is revived goes the way of a new one: start, build, seal. Its build takes over every row that still holds from the last
  sealed parts (streams/builders/full_part.py), so only what changed since is computed (B11).
- Before a revision is sealed, the full part is written again if the last sealed incremental part had grown past a share of it.

A version that is behind in a shard starts again there if it is built or revived, and not sealed there (streams/versions/shard_versions.py looks). One that
servers follow stays behind until it is frozen and revived.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from schemas.index.control import ControlState, VersionStatus
from schemas.index.lifecycle import SERVABLE, State
from schemas.index.manifest import Part
from streams.core.shard_state import ShardVersion

REWRITE_SHARE = 0.5  # incremental rows over rows of the full part: beyond it a reader has too much to merge


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One owned shard as planning sees it."""

    number: int
    next_offsets: Mapping[str, int]
    versions: Mapping[int, ShardVersion]


@dataclass(frozen=True)
class ShardAction:
    """One action for a version in a shard."""

    shard: int
    version: int


@dataclass(frozen=True)
class Start(ShardAction):
    """Write `building v`: from then on the shard writes increments and deltas for it; none if it is `behind`."""

    behind: bool = False


class Build(ShardAction):
    """Write the full part from a checkpoint of the shard."""


class Rewrite(ShardAction):
    """Write the full part again from itself and its increments, which are then forgotten."""


@dataclass(frozen=True)
class SealShard(ShardAction):
    """Export the incremental part of a revision and write the seal."""

    revision: int


class Stop(ShardAction):
    """Write no more increments and forget those there are."""


class MarkBehind(ShardAction):
    """From now on rows of this version are missing here."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a version: to be published, or to be wanted."""

    version: int
    revision: int


def plan_shard(
    state: ControlState, shard: ShardFacts, encoder_fingerprint: str, rewrite_share: float = REWRITE_SHARE, lost: Collection[int] = ()
) -> list[ShardAction]:
    """What this shard does next: at most one action for each version, because each action needs the result of the one before it.

    lost: versions whose checkpoint the index store has damaged or lost.
    """
    if state.init is None or state.unknown_entry:
        return []
    receiving = {status.version: status for status in state.receiving}
    ended = [Stop(shard.number, v) for v in sorted(shard.versions) if v <= state.newest_decided and v not in receiving]
    planned = [
        _plan_version(status, shard, status.encoder_fingerprint != encoder_fingerprint or status.version in lost, rewrite_share)
        for status in receiving.values()
        if status.version not in lost or can_do_without(state, status.version)
    ]
    return [*ended, *(action for action in planned if action is not None)]


def find_stale_service(state: ControlState, shard: ShardFacts) -> list[str]:
    """An alarm where the version that is served is behind in this shard: its answers are of items as they were, and no other sign says so."""
    served = state.current
    if served is None or served.version not in shard.versions or not shard.versions[served.version].behind:
        return []
    told = f"version {served.version} is served and has fallen behind in shard {shard.number}: answers show its items as they were"
    return [f"{told}; publish its checkpoint again, or go to another version with `aif index promote`"]


def can_do_without(state: ControlState, lost: int) -> bool:
    """Whether shards continue without the rows of a version whose checkpoint is lost. They wait for that of the served version, which would fall behind
    permanently, until a new version is wanted."""
    return state.current is None or lost != state.current.version or state.building is not None


def _plan_version(status: VersionStatus, shard: ShardFacts, foreign: bool, rewrite_share: float) -> ShardAction | None:
    version, number = status.version, shard.number
    facts = shard.versions.get(version)
    if facts is None:
        return Start(number, version, behind=foreign)
    if facts.behind:  # before anybody follows it, starting again is enough; afterwards it needs a revive
        return Stop(number, version) if (status.state is State.WANTED or status.is_reviving) and not foreign else None
    if foreign:
        return MarkBehind(number, version)
    if facts.full is None:
        return Build(number, version)
    return _plan_seal(status, shard, facts, facts.full, rewrite_share)


def _plan_seal(
    status: VersionStatus, shard: ShardFacts, facts: ShardVersion, full: Part, rewrite_share: float
) -> Rewrite | SealShard | None:
    wanted = status.wanted_revision
    if wanted is None or facts.sealed_revision >= wanted:
        return None
    if facts.sealed_increments > rewrite_share * max(full.rows, 1):
        return Rewrite(shard.number, status.version)
    return SealShard(shard.number, status.version, wanted) if has_caught_up(shard, facts) else None


def has_caught_up(shard: ShardFacts, facts: ShardVersion) -> bool:
    """Whether the shard applied the records that its partitions had when it first saw the version (B7)."""
    return all(shard.next_offsets.get(topic, 0) >= end for topic, end in facts.want_end_offsets.items())


def plan_publications(state: ControlState) -> list[Revision]:
    """Revisions that can be published as soon as every shard has sealed them."""
    if state.init is None or state.unknown_entry:
        return []
    return [Revision(s.version, s.wanted_revision) for s in state.receiving if s.wanted_revision is not None]


def plan_promotion(state: ControlState) -> int | None:
    """The version to promote: the newest published one that nothing keeps back, unless something holds, pins, or is newer and live (B9)."""
    if state.unknown_entry or state.held or state.pinned is not None:
        return None
    newest = max((s.version for s in state.versions.values() if s.state is State.PUBLISHED and not _is_kept_back(s)), default=None)
    return newest if newest is not None and newest > (state.live if state.live is not None else -1) else None


def _is_kept_back(status: VersionStatus) -> bool:
    """Whether its canary failed or it was rolled back; an operator's `approve` ends both."""
    return status.withheld or (status.turned_away and not status.approved)


def plan_wish(state: ControlState) -> int | None:
    """The revived version that an operator wanted live. It overrules holds and pins that are older than the wish; newer ones have ended the wish."""
    if state.unknown_entry:
        return None
    return max((s.version for s in state.versions.values() if s.state is State.PUBLISHED and s.wish), default=None)


def plan_revisions(state: ControlState, published_ms: Mapping[int, int], now_ms: int, interval_ms: int) -> list[Revision]:
    """Servable versions whose last publish is older than the re-seal interval (B10). `published_ms` by version, by the store's file times."""
    if state.unknown_entry:
        return []
    idle = [s for s in state.versions.values() if s.state in SERVABLE and s.wanted_revision is None]
    return [
        Revision(s.version, s.next_revision)
        for s in sorted(idle, key=lambda s: s.version)
        if now_ms - published_ms.get(s.version, s.published_at_ms) >= interval_ms
    ]
