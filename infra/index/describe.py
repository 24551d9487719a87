"""Versions, shards of a version and the state of the control log as rows that commands print."""

from typing import Any

from infra.index.store import IndexStore
from infra.index.verify import CheckpointFaults
from schemas.index.control import ControlState, VersionStatus
from schemas.index.manifest import CHECKPOINT_REPAIR, Seal


def describe_versions(state: ControlState, store: IndexStore, now_ms: int) -> list[dict[str, Any]]:
    """A row for each version, the newest first. Looks at the checkpoints of those in use (verify.py): a damaged one stops its shards at their next start.
    Raises what the store raises."""
    faults = CheckpointFaults(store).find(state.receiving)
    newest_first = sorted(state.versions.values(), key=lambda s: -s.version)
    return [_describe_version(state, status, faults.get(status.version, ""), now_ms) for status in newest_first]


def _describe_version(state: ControlState, status: VersionStatus, fault: str, now_ms: int) -> dict[str, Any]:
    marks = [
        name
        for name, holds in (
            ("served", status is state.current),
            ("pinned", status.version == state.pinned),
            ("building", status is state.building),
            ("withheld", status.withheld),
            ("turned away", status.turned_away),
            ("damaged", bool(fault)),
            (f"{status.wish} when revived", bool(status.wish)),
        )
        if holds
    ]
    since_ms = status.published_at_ms or status.wanted_at_ms
    return {
        "version": status.version,
        "state": str(status.state),
        "revision": status.revision if status.revision >= 0 else "",
        "wanted": "" if status.wanted_revision is None else status.wanted_revision,
        "mark": ",".join(marks),
        "model": status.model_id,
        "label": status.label,
        "age_s": (now_ms - since_ms) // 1000 if since_ms else "",
        "token": str(status.token) if status.revision >= 0 else "",
        "by": status.by,
        "reason": "; ".join(filter(None, (fault and f"its checkpoint {fault}: {CHECKPOINT_REPAIR}", status.reason))),
    }


def describe_seal(seal: Seal) -> dict[str, Any]:
    """A row for one shard of a version."""
    return {
        "shard": seal.shard,
        "rows": seal.rows,
        "full_rows": seal.full.rows,
        "incremental_rows": seal.incremental.rows,
        "tombstones": seal.incremental.tombstones,
        "bytes": sum(f.size_bytes for part in (seal.full, seal.incremental) for f in part.files),
        "delta_position": seal.delta_position,
        "source_offsets": dict(seal.source_offsets),
        "digest": seal.digest,
    }


def describe_served(state: ControlState) -> dict[str, Any]:
    """The versions that are served, live, pinned and held now."""
    current = state.current
    return {
        "served": str(current.token) if current else "nothing",
        "live": "" if state.live is None else state.live,
        "backup": "" if state.backup is None else state.backup,
        "pinned": "" if state.pinned is None else state.pinned,
        "held": state.held,
        "control_entries": state.next_number,
        **{name: said for name in ("held_why", "unknown_entry") if (said := getattr(state, name))},
        **({"refused_entries": list(state.refused)} if state.refused else {}),
    }
