"""The whole system seen from outside, again and again: shards, workers, versions, servers; lag and freshness. For `aif status --watch`.

Nothing is asked of a worker: what a shard has applied stands in index-deltas, membership in the consumer group, versions in the control log. So it also shows
what a worker that hangs would not say. Invariant: a part that cannot be asked is named in `errors`, and the rest is shown.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import httpx
from confluent_kafka import KafkaError, KafkaException
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from infra.clock import Clock, SystemClock
from infra.closeable import Closeable
from infra.index.control_log import ControlLog
from infra.index.delta_tail import DeltaTail
from infra.index.store import find_index_store
from infra.index.verify import CheckpointFaults
from infra.kafka.admin import end_offsets
from infra.kafka.admin_client import KafkaAdmin
from infra.kafka.security import Bootstrap
from infra.settings import InfraSettings
from infra.tools.standing_shards import fetch_standing_shards
from schemas.errors import AifError
from schemas.index.control import ControlState
from schemas.index.layout import DeltaHeader
from schemas.index.manifest import CHECKPOINT_REPAIR
from schemas.topics import ITEM_FEATURES, SHARD_TOPICS

_TAIL_RECORDS = 20  # of a delta partition, to find its last header
_ASK_S_MAX = 2.0
_LATE_S, _LATE_RECORDS = 2.0, 10_000
_NO_GROUP_YET = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.GROUP_ID_NOT_FOUND,
    }
)


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard: next offsets told to readers, records behind them, how old the newest applied record is, applied records a second."""

    shard: int
    next_offsets: tuple[int, ...]
    behind: int
    lag_s: float
    records_per_s: float
    owner: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `versions` and `servers` are rows for people."""

    at_ms: int
    shards: Sequence[ShardView] = ()
    workers: Mapping[str, Sequence[int]] = field(default_factory=dict)  # member to its shards
    versions: Sequence[Mapping[str, Any]] = ()
    servers: Sequence[Mapping[str, Any]] = ()
    errors: Sequence[str] = ()


class Inspector(Closeable):
    """Keeps its place in index-deltas between two samples. Use as a context manager."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, control_log: ControlLog, clock: Clock, servers: Sequence[str] = ()) -> None:
        self._bootstrap, self._prefix, self._log, self._clock, self._servers = bootstrap, prefix, control_log, clock, servers
        self._tail = DeltaTail(bootstrap, prefix, _TAIL_RECORDS, _ASK_S_MAX)
        self._checkpoints = CheckpointFaults(control_log.store)
        self._before: dict[int, tuple[float, int]] = {}  # shard: when, and how many records were applied

    def close(self) -> None:
        """Closes its client."""
        self._tail.close()

    def sample(self) -> Sample:
        """Looks everywhere once."""
        errors: list[str] = []
        workers = _asked(self._fetch_workers, {}, errors)
        shards = _asked(lambda: self._fetch_shards(workers), [], errors)
        if shards:
            standing = _asked(lambda: fetch_standing_shards(self._bootstrap, self._prefix, _ASK_S_MAX), {}, errors)
            errors += [f"shard {shard} stands still: {error}" for shard, error in standing.items()]
        return Sample(
            self._clock.now_ms(),
            shards,
            workers,
            _asked(self._fetch_versions, [], errors),
            [_fetch_server(url) for url in self._servers],
            errors,
        )

    def _fetch_shards(self, workers: Mapping[str, Sequence[int]]) -> list[ShardView]:
        told = self._tail.newest()
        ends = [end_offsets(self._bootstrap, self._prefix + topic, deadline_s=_ASK_S_MAX, open_too=True) for topic in SHARD_TOPICS]
        owners = {shard: member for member, shards in workers.items() for shard in shards}
        return [self._view(shard, told.get(shard), tuple(end[shard] for end in ends), owners.get(shard, "")) for shard in sorted(ends[0])]

    def _view(self, shard: int, told: DeltaHeader | None, ends: tuple[int, ...], owner: str) -> ShardView:
        offsets = told.next_offsets if told else (0,) * len(ends)
        behind = sum(max(0, end - offset) for end, offset in zip(ends, offsets, strict=True))
        age_s = (self._clock.now_ms() - told.source_ms) / 1_000 if told and told.source_ms else 0.0
        now, applied = self._clock.monotonic(), sum(offsets)
        at, before = self._before.get(shard, (now, applied))
        self._before[shard] = now, applied
        return ShardView(
            shard, offsets, behind, max(0.0, age_s) if behind else 0.0, (applied - before) / (now - at) if now > at else 0.0, owner
        )

    def _fetch_workers(self) -> dict[str, list[int]]:
        """Members of the workers' group and the shards that each owns."""
        admin = KafkaAdmin(self._bootstrap)
        group = f"{self._prefix}shards"
        try:
            found = admin.client.describe_consumer_groups([group], request_timeout=_ASK_S_MAX)[group].result()
        except KafkaException as error:
            if error.args[0].code() in _NO_GROUP_YET:
                return {}
            raise admin.unreachable(error.args[0], f"group {group}") from error
        features = self._prefix + ITEM_FEATURES
        return {
            f"{member.client_id}@{member.host.lstrip('/')}#{member.member_id[-6:]}": sorted(
                place.partition for place in member.assignment.topic_partitions if place.topic == features
            )
            for member in found.members
        }

    def _fetch_versions(self) -> list[dict[str, Any]]:
        state = self._log.refresh()
        shown = [s for s in sorted(state.versions.values(), key=lambda s: -s.version) if str(s.state) != "removed"]
        faults = self._checkpoints.find(state.receiving)
        return [self._version_row(state, status, faults.get(status.version, "")) for status in shown]

    def _version_row(self, state: ControlState, status: Any, fault: str) -> dict[str, Any]:
        wanted = status.wanted_revision
        seals = [] if wanted is None else self._log.store.list(f"versions/{status.version}/{wanted}/seals/")
        sealed = len({path.rpartition("/")[2].partition("-")[0] for path in seals})
        shards = state.init.shards if state.init else 0
        return {
            "version": status.version,
            "state": str(status.state),
            "revision": status.revision if status.revision >= 0 else "",
            "served": "yes" if status is state.current else "",
            "sealed": "" if wanted is None else f"{sealed} of {shards} for revision {wanted}",
            "reason": "; ".join(filter(None, (fault and f"its checkpoint {fault}: {CHECKPOINT_REPAIR}", status.reason))),
        }


def _asked(ask: Callable[[], Any], otherwise: Any, errors: list[str]) -> Any:
    try:
        return ask()
    except AifError as error:
        errors.append(str(error))
        return otherwise


def _fetch_server(url: str) -> dict[str, Any]:
    """What a server says of itself; or why it does not: it is away, wants a token, or is no server of ours."""
    try:
        said = httpx.get(f"{url}/v1/status", timeout=_ASK_S_MAX).raise_for_status().json()
        resident: dict[str, Any] = next((r for r in said["residents"] if r["version_token"] == said["version_token"]), {})
        row = {"server": url, "version": said["version_token"], "ready": said["ready"], "rows": resident.get("rows", "")}
        work = said.get("allocation", {})
        spent = {"mode": work.get("mode", ""), "lambda": work.get("lambda_now", ""), "shortened": work.get("shortened", "")}
        return {**row, "answered": said["answered"], **spent, "why": said["not_ready_because"]}
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        why = f"its answer lacks {error}" if isinstance(error, KeyError) else str(error)
        return {
            "server": url,
            "version": "",
            "ready": False,
            "rows": "",
            "answered": "",
            "mode": "",
            "lambda": "",
            "shortened": "",
            "why": why,
        }


# --- drawing -----------------------------------------------------------------------------------------------------------------


def watch_status(settings: InfraSettings, every_s: float, servers: Sequence[str], as_json: bool) -> None:
    """Draw samples on the terminal, or print each as one JSON object a line, until Ctrl-C."""
    log = ControlLog(find_index_store(settings.index.store, look=False))
    with (
        contextlib.suppress(KeyboardInterrupt),
        Inspector(settings.connection(), settings.kafka.topic_prefix, log, SystemClock(), servers) as inspector,
    ):
        if sys.stdout.isatty() and not as_json:
            _draw(inspector, every_s)
        while True:
            print(json.dumps(asdict(inspector.sample()), default=str), flush=True)  # noqa: T201 - data on standard output
            time.sleep(every_s)


def _draw(inspector: Inspector, every_s: float) -> NoReturn:
    with Live(render_sample(inspector.sample()), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every_s)
            live.update(render_sample(inspector.sample()), refresh=True)


def render_sample(sample: Sample) -> RenderableType:
    """A sample as tables; late and missing values stand out."""
    shards = [
        {
            "shard": shard.shard,
            "applied to": " ".join(map(str, shard.next_offsets)),
            "behind": _marked(f"{shard.behind:,}", shard.behind > _LATE_RECORDS),
            "lag s": _marked(f"{shard.lag_s:.1f}", shard.lag_s > _LATE_S),
            "records/s": f"{shard.records_per_s:,.0f}",
            "owner": shard.owner or _marked("nobody", True),
        }
        for shard in sample.shards
    ]
    workers = [{"worker": member, "shards": " ".join(map(str, owned))} for member, owned in sample.workers.items()]
    parts: list[RenderableType] = [_table("shards", shards), _table("workers", workers), _table("versions", sample.versions)]
    if sample.servers:
        parts.append(_table("servers", sample.servers))
    return Group(*parts, *(Text(error, style="bold red") for error in sample.errors))


def _marked(text: str, wrong: bool) -> Text:
    return Text(text, style="bold red" if wrong else "")


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for column in rows[0] if rows else ("nothing",):
        table.add_column(column)
    for row in rows:
        # One line a row: a long reason in a narrow window would push the other tables out of it.
        table.add_row(
            *(value if isinstance(value, Text) else Text(str(value), no_wrap=True, overflow="ellipsis") for value in row.values())
        )
    return table
