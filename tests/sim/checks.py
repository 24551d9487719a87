"""The invariants: while a history runs, and when it has come to rest.

Here: comparisons of what processes hold with the oracle; each raises `Violation` with the name of the invariant. Not here: the oracle (oracle.py).

    while it runs   served rows          every row of an answer is the state of its item at the row's own stamps, never a mixture
                    watermark            an answer holds everything up to the offsets it claims
                    rows never go back   within one version in memory
    at rest         applied              next offsets at the ends of the topics, counters exact (I1)
                    components           of every shard = the fold of its topics
                    rows of a version    of every shard = the fold, for every version that receives increments
                    manifest             every published revision = the fold at its source offsets, by rows, digests and counts (I4)
                    catalogue            a version holds at least what was published before it was wanted (B7)
                    served at rest       every server has the version of the log, and its rows = the fold at the ends
                    the control log      no refused entry, one publish a revision, promotions go forward, not under hold
                                         and as the canary against the live version says, all readers agree
                    one version          a checkpoint record makes one version
                    one encoder          rows of a version are of the encoder of its `want` alone, wherever rows are compared; no version is behind
                                         in a shard, unless the workers' encoders were being changed (B5) or its checkpoint was lost
                    progress             what is wanted gets published, and nothing but an abort ends a build
                    dead letters         as a set of source positions (I6)
"""

import hashlib
from collections.abc import Iterable, Mapping

from infra.index.control_log import ControlLog
from schemas.errors import AifError
from schemas.index.control import ControlState, Entry, decode_entry
from schemas.index.lifecycle import EntryKind, State
from schemas.index.manifest import Manifest, Seal, decode_manifest
from schemas.topics import SHARD_TOPICS
from streams.core.item import decode_item
from streams.core.shard_state import TopicCounts
from streams.core.version_plans import plan_promotion, plan_wish
from streams.shard.directory import EMBEDDINGS, INCREMENTS, ITEMS, increment_prefix
from tests.sim.encoder import FINGERPRINT, SimEncoder, encoder_of
from tests.sim.haste import QuickLog
from tests.sim.oracle import ExpectedRow, ShardOracle, input_hash_of
from tests.sim.server import Resident, Server, Stamp, read_increment, read_part_rows
from tests.sim.worker import Task, Worker, checkpoint_sha256, ranks_unlike
from tests.sim.world import Violation, World

Rows = Mapping[bytes, tuple[Stamp, bytes | None]]


def require(condition: bool, invariant: str, message: str, *values: object) -> None:
    """Raises Violation unless the condition holds."""
    if not condition:
        raise Violation(invariant, message % values if values else message)


def sim_encoder(world: World, version: int, sha256: str = "") -> SimEncoder:
    """The encoder of a version: rows of any other fingerprint than that of its `want` are wrong (B5)."""
    return encoder_of(version, sha256 or checkpoint_sha256(world.checkpoints.records[version]), _fingerprint(world, version))


def _fingerprint(world: World, version: int) -> str:
    status = world.log.refresh().versions.get(version)
    return status.encoder_fingerprint if status is not None else FINGERPRINT


# --- while it runs ------------------------------------------------------------------------------------------------------------


def check_answer(world: World, server: Server) -> None:
    """What a server would answer now. A row that was right and has not changed since is right, because the records that it was compared with never change."""
    resident = server.served
    if resident is None or resident.error:
        return
    encoder, followed = sim_encoder(world, resident.version, resident.checkpoint_sha256), _is_followed(world, resident)
    changed, resident.unchecked = resident.unchecked, {}
    for shard, key in changed:
        stamp, row = resident.rows[shard][key]
        check_row(world.oracles[shard], encoder, key, stamp, row, f"{server.name} serves {resident.version}.{resident.revision}")
    for shard, oracle in enumerate(world.oracles if followed else ()):
        if changed or resident.checked.get(shard) != resident.watermark[shard]:
            resident.checked[shard] = dict(resident.watermark[shard])
            check_watermark(oracle, resident, shard, server.name)


def _is_followed(world: World, resident: Resident) -> bool:
    """Whether its claims are judged. They are not while the version comes back from a freeze that the server has not heard of. Its own records come again
    then, and the rows in between are missing. A server looks at the log five times a second, a revival takes longer."""
    if not resident.was_revived:
        status = world.log.refresh().versions.get(resident.version)
        frozen = status is not None and status.frozen_revision >= resident.revision
        resident.was_revived = frozen and status is not None and (status.is_reviving or status.revision > resident.revision)
    return not resident.was_revived


def check_row(oracle: ShardOracle, encoder: SimEncoder, key: bytes, stamp: Stamp, row: bytes | None, who: str) -> None:
    """The row is what its item was at the row's own stamps."""
    embedding = oracle.embedding_at.get((key, stamp[3:5]), b"")
    known = (key, stamp[:3]) in oracle.features_at and (stamp[3] < 0 or bool(embedding))
    require(known, "served rows", "%s: %s has stamp %s, which no record made", who, key.hex(), stamp)
    expected = ExpectedRow(stamp[:5], oracle.features_at[key, stamp[:3]], embedding)
    require(
        (row, stamp[5]) == (_row_bytes(encoder, expected), input_hash_of(expected)),
        "served rows",
        "%s: %s at %s is not %s",
        who,
        key.hex(),
        stamp,
        expected,
    )


def _row_bytes(encoder: SimEncoder, expected: ExpectedRow) -> bytes | None:
    return None if expected.features is None else encoder.row(expected.features, expected.embedding)


def check_watermark(oracle: ShardOracle, resident: Resident, shard: int, who: str) -> None:
    """The rows hold everything up to the watermark."""
    rows, watermark = resident.rows[shard], resident.watermark[shard]
    for key, expected in oracle.view(watermark).items():
        held = rows.get(key)
        if expected.features is None:
            there = held is None or held[1] is None or held[0][:3] >= expected.stamp[:3]
        else:
            there = held is not None and held[0][:3] >= expected.stamp[:3] and held[0][3:5] >= expected.stamp[3:5]
        require(
            there, "watermark", "%s claims %s of shard %d for version %d, %s is %s there, it has %s",
            who, watermark, shard, resident.version, key.hex(), expected, held,
        )  # fmt: skip


# --- at rest: shards ----------------------------------------------------------------------------------------------------------


def check_shard(world: World, task: Task) -> None:
    """Everything a shard holds."""
    oracle, shard = world.oracles[task.number], task.shard
    require(shard.next_offsets == oracle.ends, "applied", "shard %d is at %s, the log at %s", task.number, shard.next_offsets, oracle.ends)
    for topic in SHARD_TOPICS:
        expected = TopicCounts(*oracle.counts[topic][-1])
        require(
            shard.state.counters[topic] == expected, "applied", "%s: counted %s, it was %s", topic, shard.state.counters[topic], expected
        )
    _check_components(oracle, task)
    for version, facts in shard.versions.items():
        if not facts.behind and facts.full is not None:
            check_version_rows(world, task, version)


def _check_components(oracle: ShardOracle, task: Task) -> None:
    database = task.shard.database
    items = {k: decode_item(v) for k, v in database.scan(ITEMS)}
    for key in items.keys() | oracle.features[-1]:
        item, expected = items.get(key), oracle.features[-1].get(key)
        found = None if item is None else item.features
        told = None if found is None else (found.stamp, found.changed, found.dead)
        wanted = None if expected is None else (expected.stamp, expected.changed, expected.features is None)
        require(told == wanted, "components", "features of %s: %s, expected %s", key.hex(), found, expected)
    values = dict(database.scan(EMBEDDINGS))
    found_embeddings = {k: (i.embedding.changed, values.get(k)) for k, i in items.items() if i.embedding is not None}
    expected_embeddings = {k: (e.changed, e.values) for k, e in oracle.embeddings[-1].items()}
    require(found_embeddings == expected_embeddings, "components", "embeddings: %s, expected %s", found_embeddings, expected_embeddings)


def check_version_rows(world: World, task: Task, version: int) -> None:
    """A shard's increments over its full part are the fold."""
    facts = task.shard.versions[version]
    assert facts.full is not None
    rows = {
        k: (o, r.tobytes())
        for b in world.store.read_part(facts.full.directory)
        for k, o, r in zip(b.keys, b.stamps.tolist(), b.rows, strict=True)
    }
    prefix = increment_prefix(version)
    for key, value in task.shard.database.scan(INCREMENTS, prefix, increment_prefix(version + 1)):
        rows[key[len(prefix) :]] = read_increment(value)
    encoder = sim_encoder(world, version, facts.checkpoint_sha256)
    check_view(
        world.oracles[task.number], encoder, task.shard.next_offsets, rows, "rows of a version", f"shard {task.number}, version {version}"
    )


def check_view(oracle: ShardOracle, encoder: SimEncoder, offsets: Mapping[str, int], rows: Rows, invariant: str, who: str) -> None:
    """Live rows, with their stamps, are exactly the fold at these offsets; deleted items are deleted there too."""
    view = oracle.view(offsets)
    expected = {k: ((*e.stamp, input_hash_of(e), 0), _row_bytes(encoder, e)) for k, e in view.items() if e.features is not None}
    found = {k: held for k, held in rows.items() if held[1] is not None}
    for key in expected | found:
        require(
            found.get(key) == expected.get(key),
            invariant,
            "%s at %s: %s is %s, expected %s",
            who,
            offsets,
            key.hex(),
            found.get(key),
            view.get(key),
        )


# --- at rest: the store -------------------------------------------------------------------------------------------------------


def check_manifests(world: World) -> None:
    """Every manifest, also of versions that no server serves any more."""
    for path in world.store.list("versions/"):
        if path.endswith("/manifest.json"):
            manifest = decode_manifest(world.store.get(path))
            require([s.shard for s in manifest.seals] == list(range(world.shards)), "manifest", "%s has not one seal a shard", path)
            for seal in manifest.seals:
                _check_seal(world, manifest, seal)


def _check_seal(world: World, manifest: Manifest, seal: Seal) -> None:
    who = f"{manifest.version}.{manifest.revision}, shard {seal.shard}"
    oracle, encoder = world.oracles[seal.shard], sim_encoder(world, manifest.version, manifest.checkpoint_sha256)
    check_view(oracle, encoder, seal.source_offsets, read_part_rows(world, seal), "manifest", who)
    view = oracle.view(seal.source_offsets)
    live = {k: e for k, e in sorted(view.items()) if e.features is not None}
    digests = seal.rows, seal.digest, seal.data_digest
    expected = len(live), _digest(b"", ((k, _row_bytes(encoder, e) or b"") for k, e in live.items())), _data_digest(live)
    require(digests == expected, "manifest", "%s: rows and digests are %s, expected %s", who, digests, expected)
    if manifest.revision == 0 and (wanted := world.want_ends.get(manifest.version)):
        for topic, end in wanted[seal.shard].items():
            reached = seal.source_offsets[topic]
            require(reached >= end, "catalogue", "%s holds %s to %d, it ended at %d when the version was wanted", who, topic, reached, end)


def _digest(head: bytes, values: Iterable[tuple[bytes, bytes]]) -> str:
    of = hashlib.blake2b(head, digest_size=16)
    for key, value in values:
        of.update(len(key).to_bytes(2, "little") + key + value)
    return of.hexdigest()


def _data_digest(live: Mapping[bytes, ExpectedRow]) -> str:
    return _digest(b"sim\0sim-lsh\0", ((k, input_hash_of(e).to_bytes(8, "little")) for k, e in live.items()))


# --- at rest: the log ---------------------------------------------------------------------------------------------------------


def read_entries(world: World) -> list[Entry]:
    """The log as it is now."""
    return [decode_entry(world.store.get(path)) for path in world.store.list("control/")]


def check_log(world: World, readers: Mapping[str, ControlLog]) -> ControlState:
    """The log by itself, and every reader's fold of it."""
    try:
        state, entries = QuickLog(world.store).refresh(), read_entries(world)  # type: ignore[arg-type]
    except AifError as error:
        raise Violation("the control log reads", str(error)) from error
    require(not state.refused, "the control log", "refused entries: %s", state.refused)
    for name, log in readers.items():
        require(log.refresh() == state, "readers agree", "%s folds the log to %s, it is %s", name, log.state, state)
    _check_entries(entries)
    wanted = [e.checkpoint_sha256 for e in entries if e.kind is EntryKind.WANT and e.checkpoint_sha256]
    require(len(wanted) == len(set(wanted)), "one version", "a checkpoint is wanted as several versions: %s", [e.version for e in entries])
    return state


def _check_entries(entries: list[Entry]) -> None:
    published, held, live = set[tuple[int, int]](), False, -1
    wished, approved = -1, set[int]()
    for number, entry in enumerate(entries):
        who = entry.version, entry.revision
        if entry.kind is EntryKind.PUBLISH:
            require(who not in published, "the control log", "%d.%d is published twice", *who)
            published.add(who)
        held = "rollback" in (entry.kind, entry.wish) or entry.kind is EntryKind.HOLD or (held and entry.kind is not EntryKind.RELEASE)
        wished = entry.version if entry.wish else wished
        if entry.kind is EntryKind.PROMOTE and entry.by != "operator" and entry.version != wished:
            require(not held, "the control log", "entry %d promotes %d under a hold", number, entry.version)
            require(entry.version > live, "the control log", "entry %d promotes %d, %d is live", number, entry.version, live)
            unlike = live >= 0 and ranks_unlike(entry.version, live) and entry.version not in approved
            require(not unlike, "the control log", "entry %d promotes %d, whose canary against %d failed", number, entry.version, live)
        if entry.kind is EntryKind.WITHHOLD:
            unlike = live >= 0 and ranks_unlike(entry.version, live)
            require(unlike, "the control log", "entry %d withholds %d, whose canary against %d did not fail", number, entry.version, live)
        if entry.kind is EntryKind.APPROVE:
            approved.add(entry.version)
        if entry.kind in (EntryKind.PROMOTE, EntryKind.ROLLBACK):
            live = entry.version


def check_progress(world: World, state: ControlState, behind: frozenset[int]) -> None:
    """Nothing is left to be done. A version that is behind in a shard may wait permanently; its error names who has to act (B5)."""
    open_ones = [f"{s.version}.{s.wanted_revision}" for v, s in state.versions.items() if s.wanted_revision is not None and v not in behind]
    require(not open_ones, "progress", "still wanted at rest: %s", open_ones)
    require(plan_promotion(state) is None, "progress", "version %s waits for its promotion", plan_promotion(state))
    require(plan_wish(state) is None, "progress", "version %s was wished for and waits", plan_wish(state))
    decided = state.newest_decided + 1
    require(decided >= world.checkpoints.end, "progress", "checkpoints are decided up to %d of %d", decided, world.checkpoints.end)
    overtaken = [s.version for s in state.versions.values() if s.state is State.ABORTED and s.reason.startswith("overtaken")]
    given_up = world.started.intersection(overtaken)
    require(not given_up, "progress", "builds of %s had begun and were given up for newer versions", given_up)


# --- at rest: servers ----------------------------------------------------------------------------------------------------------


def check_server_at_rest(world: World, server: Server, state: ControlState, behind: frozenset[int]) -> None:
    """It serves what the log says, and all of it."""
    current = state.current
    if current is None or current.revision < 0:
        return
    resident = server.served
    require(
        resident is not None and resident.version == current.version and not resident.error,
        "served at rest", "%s serves %s, the log says %d (%s)", server.name, resident and resident.version, current.version, server.refused,
    )  # fmt: skip
    assert resident is not None
    if current.version in behind:
        return  # its rows stand where the last worker with its encoder left them, and so does what the server claims
    encoder = sim_encoder(world, resident.version, resident.checkpoint_sha256)
    for shard, oracle in enumerate(world.oracles):
        check_view(oracle, encoder, oracle.ends, resident.rows[shard], "served at rest", f"{server.name}, shard {shard}")
        require(
            resident.watermark[shard] == oracle.ends,
            "watermark",
            "%s claims %s at rest, the ends are %s",
            server.name,
            resident.watermark[shard],
            oracle.ends,
        )


def check_dead_letters(world: World) -> None:
    """Each rejected update, and nothing else, is a dead letter."""
    expected = {(topic, shard, offset, index) for shard, o in enumerate(world.oracles) for topic, offset, index in o.dead_letters}
    require(world.dead_letters == expected, "dead letters", "found %s, expected %s", sorted(world.dead_letters), sorted(expected))


def check_at_rest(world: World, workers: list[Worker], servers: list[Server]) -> None:
    """Everything, when nothing moves any more."""
    readers = {w.name: w.log for w in workers} | {s.name: s.log for s in servers}
    state = check_log(world, readers)
    for worker in workers:
        alarms = [
            alarm for alarm in worker.report.alarms if "is served and has fallen behind" not in alarm
        ]  # which versions may be is judged below
        require(not worker.report.errors and not alarms, "progress", "%s: %s", worker.name, worker.report)
        for task in worker.tasks.values():
            check_shard(world, task)
    check_manifests(world)
    check_dead_letters(world)
    behind = frozenset(v for w in workers for t in w.tasks.values() for v, facts in t.shard.versions.items() if facts.behind)
    may_be_behind = world.is_upgrading or world.is_losing
    require(may_be_behind or not behind, "one encoder", "versions %s are behind though every worker has their encoder", behind)
    check_progress(world, state, behind)
    for server in servers:
        check_server_at_rest(world, server, state, behind)
