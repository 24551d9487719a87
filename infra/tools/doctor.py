"""`aif doctor`: checks before a process is started. Settings, broker, topics, store, disk, device, clock, limits, and whether the model knows the published
features (unknown_features.py).

Each check says ok, warn or fail, its finding, and the next step. Nothing is changed, except small files in the index store that are removed again.
"""

import importlib.metadata
import os
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

from infra.command import SETTINGS_CLASSES
from infra.index.control_log import ControlLog, check_index_settings, read_state
from infra.index.store import check_exclusive_create, fetch_store_time_ms, find_index_store
from infra.index.verify import CheckpointFaults
from infra.kafka.admin import LARGER, NEEDS_PERMISSION, SURPLUS, check_surplus, check_topic_ids, end_offsets, fetch_topics, plan_topics
from infra.processes import FILES_MIN, FILES_NEEDED
from infra.settings import InfraSettings, explain_settings
from infra.tools.retained import find_gaps
from infra.tools.standing_shards import REMEDY, fetch_standing_shards
from schemas.errors import AifError, suggest
from schemas.features import Scope
from schemas.ids import IdKind
from schemas.index.manifest import CHECKPOINT_REPAIR
from schemas.limits import CHECKPOINT_BYTES_MAX
from schemas.topics import SHARD_TOPICS

OK, WARN, FAIL = "ok", "warn", "fail"
_FREE_BYTES_WARN, _FREE_BYTES_FAIL = 10 << 30, 1 << 30
_CLOCK_S_WARN, _CLOCK_S_FAIL = 2.0, 30.0  # an object store tells whole seconds
_MEMORY = Path("/proc/meminfo")
_MEMORY_BYTES_WARN = 1 << 30
_ASK_S_MAX = 5.0
_TRANSACTION_S = 3.0
_NAMES_SHOWN = 5
_NEW_INDEX = "(another index store and data directory), and publish the catalogue and a checkpoint again"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    state: str
    found: str
    next_step: str = ""


def examine(settings: InfraSettings) -> list[Finding]:
    """Every check, each whatever the others found."""
    checks: tuple[Callable[[InfraSettings], Finding], ...] = (
        check_settings,
        check_broker,
        check_topics,
        check_store,
        check_checkpoints,
        check_features,
        check_retention,
        check_transactions,
        check_shards,
        check_clock,
        check_disk,
        check_memory,
        check_open_files,
        check_device,
        check_libraries,
    )
    return [_run(check, settings) for check in checks]


def _run(check: Callable[[InfraSettings], Finding], settings: InfraSettings) -> Finding:
    name = check.__name__.removeprefix("check_")
    try:
        return check(settings)
    except AifError as error:
        found, _, next_step = error.message.rpartition("; ")  # so end our messages (schemas/errors.py)
        state = WARN if error.code == "index_store_missing" else FAIL  # as before the first start of a worker
        return Finding(name, state, f"{error.code}: {found or next_step}", next_step if found else "")
    except OSError as error:
        return Finding(name, FAIL, str(error), "look at the path and its permissions")


def check_settings(settings: InfraSettings) -> Finding:
    """Whether every process can read its own: a command reads its own sections only, and a misspelt name of another's would show when that one starts."""
    given = {row.name for path in SETTINGS_CLASSES for row in explain_settings(resolve_name(path)) if row.origin != "default"}
    return Finding("settings", OK, f"{len(given)} are not at their defaults (`aif config show`)")


def check_broker(settings: InfraSettings) -> Finding:
    """Whether it answers, and how fast."""
    began = time.monotonic()
    fetch_topics(settings.connection(), settings.kafka.topic_prefix, deadline_s=_ASK_S_MAX)
    return Finding("broker", OK, f"{settings.connection()} answers in {(time.monotonic() - began) * 1e3:.0f} ms")


def check_topics(settings: InfraSettings) -> Finding:
    """Whether they are those of the table, and of the index. Another number of partitions or another cleanup policy loses events."""
    prefix = settings.kafka.topic_prefix
    found = fetch_topics(settings.connection(), prefix, deadline_s=_ASK_S_MAX, settings=True)
    if (index := read_state(find_index_store(settings.index.store, look=False)).init) is not None:
        check_topic_ids(index.topic_ids, {name: topic.topic_id for name, topic in found.items()}, prefix)
        if gone := [f"{prefix}{name}" for name in index.topic_ids if name not in found]:
            step = "see that broker and prefix are those of the index; a topic that was deleted is another one when it is made again: begin a new index "
            return Finding("topics", FAIL, f"the index has offsets in topics that are not there: {', '.join(gone)}", f"{step}{_NEW_INDEX}")
    shards, user_partitions = (index.shards, index.user_partitions) if index else (settings.index.shards, settings.index.user_partitions)
    check_surplus(found, prefix, shards)
    planned = plan_topics(found, shards, user_partitions)
    changes = [change for change in planned if change.kind != LARGER]
    if not changes:
        larger = f"; {len(planned)} settings are larger: {planned[0]}" if planned else ""
        return Finding("topics", OK, f"{len(found)} topics under {prefix!r} are as wanted{larger}")
    grave = [c for c in changes if c.kind in NEEDS_PERMISSION]
    first = min(changes, key=lambda c: (c.kind not in NEEDS_PERMISSION, c.kind == SURPLUS))
    step = "aif topics plan, then aif topics apply"
    if first.kind == SURPLUS:
        step = "leave it, and let clients use only the wanted number: records in the other partitions become dead letters"
    return Finding("topics", FAIL if grave else WARN, f"{len(changes)} differ, first: {first}", step)


def check_store(settings: InfraSettings) -> Finding:
    """Whether the index store can be listed, refuses the second of two creates, on which the control log rests, and is of the index that the settings
    name."""
    store, index = find_index_store(settings.index.store), settings.index
    entries = len(store.list("control/"))
    check_exclusive_create(store)
    check_index_settings(ControlLog(store).refresh(), settings.kafka.topic_prefix, index.shards, index.user_partitions, index.id_kind)
    if not entries:
        return Finding("store", OK, f"{store.url} is empty: no worker has begun an index here", "where one has, look at AIF_INDEX__STORE")
    return Finding("store", OK, f"{store.url}, {entries} entries in the control log")


def check_checkpoints(settings: InfraSettings) -> Finding:
    """Whether the store's copies of the checkpoints of all versions in use are what their names say. A worker that starts needs them."""
    store = find_index_store(settings.index.store, look=False)
    state = read_state(store)
    if faults := CheckpointFaults(store, CHECKPOINT_BYTES_MAX).find(state.receiving):
        told = (f"that of version {version} ({state.versions[version].model_id!r}) {fault}" for version, fault in faults.items())
        return Finding("checkpoints", FAIL, ", ".join(told), CHECKPOINT_REPAIR)
    return Finding("checkpoints", OK, f"those of {len(state.receiving)} versions in use are whole")


def check_features(settings: InfraSettings) -> Finding:
    """Whether the model of the served version knows the features of the newest updates of items, and reads their values and embeddings."""
    # These load the model's file format.
    from infra.tools import unknown_features as look

    store = find_index_store(settings.index.store, look=False)
    served = read_state(store).current
    if served is None:
        return Finding("features", OK, "no version is served")
    schema = look.read_schema(store, served.checkpoint_sha256)
    topics = settings.connection(), settings.kafka.topic_prefix, IdKind(settings.index.id_kind), _ASK_S_MAX
    updates = look.read_newest_updates(*topics)
    unknown, unread = look.find_unknown_features(schema, updates), look.find_unread_values(schema, updates)
    narrow = look.find_unread_embedding(schema, look.read_newest_embeddings(*topics))
    if not unread and not unknown and not narrow:
        return Finding("features", OK, f"version {served.version} knows every feature of the newest {len(updates)} updates")
    found, steps = list[str](), list[str]()
    if unread:
        named = (f"{name!r} is {value!r:.40} and not {kind} (item {item})" for name, (item, value, kind) in unread.items())
        found.append(f"these values count as missing: {', '.join(list(named)[:_NAMES_SHOWN])}")
        steps.append("publish them as the kind that the model has, as `aif model show` lists them")
    if narrow:
        found.append(
            f"embeddings of {narrow[1]} numbers count as missing, version {served.version} has {schema.mm_width} (item {narrow[0]})"
        )
        steps.append("publish them at the width that the model has, or train a model of the other width")
    if unknown:
        names = ", ".join(f"{name!r} (item {item})" for name, item in list(unknown.items())[:_NAMES_SHOWN])
        hint = suggest(next(iter(unknown)), [feature.name for feature in schema.of(Scope.ITEM)])
        found.append(f"{len(unknown)} features are unknown to version {served.version} and count for nothing: {names}")
        steps.append(f"rename them, or train a model that has them; {hint}")
    return Finding("features", WARN, f"of the newest {len(updates)} updates {'; '.join(found)}", "; ".join(steps))


def check_retention(settings: InfraSettings) -> Finding:
    """Whether the logs still hold what each shard needs next, and what a new owner of it would need."""
    bootstrap, prefix = settings.connection(), settings.kafka.topic_prefix
    try:
        gone, bare = find_gaps(bootstrap, prefix, find_index_store(settings.index.store), _ASK_S_MAX)
    except AifError as error:
        if error.code != "unknown_topic":
            raise
        return Finding("retention", OK, "there are no topics yet")
    if gone:
        step = "start the worker that has the shard if the store has a snapshot, else publish the catalogue again into a new index; lengthen the retention"
        return Finding("retention", FAIL, "; ".join(gone), step)
    if bare:
        return Finding(
            "retention", WARN, "; ".join(bare), "keep the worker's directory until it has taken a snapshot; lengthen the retention"
        )
    return Finding("retention", OK, "the logs hold what every shard needs next")


def check_transactions(settings: InfraSettings) -> Finding:
    """Whether a transaction stays open, so that readers get no record behind its first one, acknowledged or not."""
    held = _held_back(settings)
    if held:
        time.sleep(_TRANSACTION_S)
        held = {place: end for place, end in _held_back(settings).items() if held.get(place) == end}
    if held:
        found = "; ".join(
            f"{place} has an open transaction at offset {end}: no reader gets the records after it" for place, end in held.items()
        )
        return Finding("transactions", WARN, found, "end its producer, or abort it with `kafka-transactions.sh`")
    return Finding("transactions", OK, "none holds back records of items")


def _held_back(settings: InfraSettings) -> dict[str, int]:
    """By partition of the item topics the end for readers, where the log has more."""
    held: dict[str, int] = {}
    for topic in SHARD_TOPICS:
        name = settings.kafka.topic_prefix + topic
        try:
            ends = end_offsets(settings.connection(), name, deadline_s=_ASK_S_MAX)
            with_open = end_offsets(settings.connection(), name, deadline_s=_ASK_S_MAX, open_too=True)
        except AifError as error:
            if error.code != "unknown_topic":
                raise
            continue
        held |= {f"{topic}[{p}]": end for p, end in ends.items() if end < with_open[p]}
    return held


def check_shards(settings: InfraSettings) -> Finding:
    """Whether a shard stands still because its worker's disk takes no writes."""
    standing = fetch_standing_shards(settings.connection(), settings.kafka.topic_prefix, _ASK_S_MAX)
    if standing:
        return Finding("shards", FAIL, "; ".join(f"shard {shard} stands still: {error}" for shard, error in standing.items()), REMEDY)
    return Finding("shards", OK, "no worker reports a disk that takes no writes")


def check_clock(settings: InfraSettings) -> Finding:
    """Our clock against the store's, whose file times decide about retention and revisions; freshness needs the publishers' too."""
    ahead_s = time.time() - fetch_store_time_ms(find_index_store(settings.index.store)) / 1e3
    state = OK if abs(ahead_s) < _CLOCK_S_WARN else WARN if abs(ahead_s) < _CLOCK_S_FAIL else FAIL
    return Finding("clock", state, f"{ahead_s:+.3f} s against the index store", "" if state == OK else "synchronise the clocks (NTP)")


def check_disk(settings: InfraSettings) -> Finding:
    """Room where the index store or the copies of its files are; a worker's data directory usually is next to it."""
    root = find_index_store(settings.index.store, look=False).local_root
    path = next(folder for folder in (root, *root.parents) if folder.is_dir())
    usage = shutil.disk_usage(path)
    state = OK if usage.free > _FREE_BYTES_WARN else WARN if usage.free > _FREE_BYTES_FAIL else FAIL
    found = f"{usage.free / (1 << 30):.1f} GiB of {usage.total / (1 << 30):.1f} GiB are free at {path}"
    return Finding("disk", state, found, "" if state == OK else "free space: a full disk stops consumption until there is room")


def check_memory(_: InfraSettings) -> Finding:
    """Two arenas of a version live in it: anonymous memory, which the size of /dev/shm does not bound."""
    free = next(int(line.split()[1]) << 10 for line in _MEMORY.read_text().splitlines() if line.startswith("MemAvailable"))
    state = OK if free > _MEMORY_BYTES_WARN else WARN
    return Finding("memory", state, f"{free / (1 << 30):.1f} GiB are available", "" if state == OK else "more memory for the server")


def check_open_files(_: InfraSettings) -> Finding:
    """RocksDB keeps table files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= FILES_MIN  # a process raises its limit to the hard one
    state = OK if enough else WARN if hard >= FILES_NEEDED else FAIL
    return Finding("open_files", state, f"limit {soft}, at most {hard}", "" if state == OK else f"ulimit -Hn {FILES_MIN}")


def check_device(_: InfraSettings) -> Finding:
    """Cores, and whether an accelerator is visible. Torch is not loaded for it."""
    cores = len(os.sched_getaffinity(0))
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    return Finding(
        "device", OK, f"{cores} cores, {'accelerators ' + ', '.join(devices) if devices else 'no accelerator: the CPU engine serves'}"
    )


def check_libraries(_: InfraSettings) -> Finding:
    """Versions of what decides arithmetic and formats. A server needs neither torch nor Faust."""
    found, missing = [], []
    for name in ("torch", "numpy", "rocksdict", "confluent-kafka", "faust-streaming"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    without = f"; without {', '.join(missing)}: no worker and no training here (`pip install 'aif[worker,train]'`)" if missing else ""
    return Finding("libraries", OK, ", ".join(found) + without)
