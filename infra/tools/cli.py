"""`aif doctor`, and `aif status`: one look at broker, topics and versions; with `--watch` at the whole system, again and again (watch.py).

Typer and standard library at module level. Invariant: a part that does not answer is named, and the rest is shown.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.clock import SystemClock
from infra.command import AsJson, print_parts, print_table, read_settings, say
from schemas.errors import AifError, Incompatible
from schemas.topics import MODEL_CHECKPOINTS

if TYPE_CHECKING:
    from infra.index.control_log import ControlLog
    from infra.index.store import IndexStore
    from infra.settings import InfraSettings
    from schemas.index.control import ControlState


def doctor(as_json: AsJson = False) -> None:
    """Check settings, broker, topics, store, clock, disk, memory, device and libraries before a start. Exit code 1 if a check fails."""
    from infra.tools.doctor import FAIL, examine

    findings = examine(read_settings())
    rows = [{"check": f.check, "state": f.state, "found": f.found, "next_step": f.next_step} for f in findings]
    print_table("checks", rows, as_json)
    if any(finding.state == FAIL for finding in findings):
        raise typer.Exit(1)


def status(
    watch: Annotated[bool, typer.Option("--watch", help="Show shards, workers, versions and lag, refreshed until Ctrl-C.")] = False,
    every_s: Annotated[float, typer.Option(min=0.1, help="With --watch: seconds between two looks.")] = 1.0,
    server: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="With --watch: a server to show as well, http://HOST:PORT; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the broker, its topics, the versions and their age. `--watch` shows the whole system live: owners, lag, freshness.

    \b
    unsealed          records after the last seal of the served version: its
                      increments hold them, its parts do not
    undecided         checkpoint records that no worker has taken or rejected
                      yet; a worker tries an unreadable file for a minute
    statistics_age_s  seconds since `aif statistics` last had everything counted;
                      left out without a report of the last day
    standing_shards   shards whose disk takes no writes

    Exit code 1 if there are standing shards, or if the broker or the index store does not answer.
    """
    from infra.index.control_log import ControlLog
    from infra.index.describe import describe_served, describe_versions
    from infra.index.store import find_index_store
    from infra.tools.statistics_age import statistics_age_s

    settings = read_settings()
    if watch:
        from infra.tools.watch import watch_status

        watch_status(settings, every_s, server or [], as_json)
        return
    log = ControlLog(find_index_store(settings.index.store, look=False))
    state = _reachable(log.refresh)
    topics, broker, answers = _topic_rows(settings, log, state)
    data: dict[str, Any] = {"broker": broker, "index_store": log.store.url, **(describe_served(state) if state else {})}
    if state and state.init and (wrong := _find_surplus(topics, settings.kafka.topic_prefix, state.init.shards)):
        data["topics_error"] = wrong
    versions = (_reachable(lambda: describe_versions(state, log.store, SystemClock().now_ms())) if state else None) or []
    standing = _standing_rows(settings) if answers else []
    if answers and (age_s := _reachable(lambda: statistics_age_s(settings.connection(), settings.kafka.topic_prefix))) is not None:
        data["statistics_age_s"] = round(age_s, 1)
    print_parts(data, {"topics": topics, "versions": versions, **({"standing_shards": standing} if standing else {})}, as_json)
    if state is None or not answers or standing or "topics_error" in data:
        raise typer.Exit(1)


def _find_surplus(rows: "list[dict[str, Any]]", prefix: str, shards: int) -> str:
    """The fault of the item topics' partitions, else ""."""
    from infra.kafka.admin import FoundTopic, check_surplus

    try:
        check_surplus({row["topic"]: FoundTopic(row["partitions"]) for row in rows}, prefix, shards)
    except Incompatible as error:
        return str(error)
    return ""


def _topic_rows(settings: "InfraSettings", log: "ControlLog", state: "ControlState | None") -> tuple[list[dict[str, Any]], str, bool]:
    """A row for each topic, the state of the broker, and whether it answers."""
    from infra.kafka.admin import end_offsets, fetch_topics

    try:
        bootstrap, prefix = settings.connection(), settings.kafka.topic_prefix
        found = fetch_topics(bootstrap, prefix, deadline_s=3.0)
        ends = {name: end_offsets(bootstrap, prefix + name, deadline_s=3.0) for name in found}
    except AifError as error:
        return [], str(error), False
    sealed = _sealed_offsets(log.store, state)
    rows = [
        {
            "topic": name,
            "partitions": topic.partitions,
            "records": sum(ends[name].values()),
            "unsealed": sum(ends[name].values()) - sealed[name] if name in sealed else "",
            "undecided": max(0, ends[name].get(0, 0) - state.newest_decided - 1) if state and name == MODEL_CHECKPOINTS else "",
        }
        for name, topic in found.items()
    ]
    return rows, f"answers at {bootstrap}", True


def _standing_rows(settings: "InfraSettings") -> list[dict[str, Any]]:
    """A row for each shard whose worker's disk takes no writes."""
    from infra.tools.standing_shards import REMEDY, fetch_standing_shards

    found = _reachable(lambda: fetch_standing_shards(settings.connection(), settings.kafka.topic_prefix, 3.0)) or {}
    return [{"shard": shard, "error": error, "next_step": REMEDY} for shard, error in found.items()]


def _sealed_offsets(store: "IndexStore", state: "ControlState | None") -> dict[str, int]:
    """Records of each shard topic that are in the parts of the served version; empty if none is served or its manifest cannot be read."""
    from infra.index.parts import read_manifest

    served = state.current if state else None
    manifest = _reachable(lambda: read_manifest(store, served)) if served else None
    totals: dict[str, int] = {}
    for seal in manifest.seals if manifest else ():
        for topic, offset in seal.source_offsets.items():
            totals[topic] = totals.get(topic, 0) + offset
    return totals


def _reachable(ask: Callable[[], Any]) -> Any:
    """The answer, or None after a warning: a status shows the parts that answer."""
    try:
        return ask()
    except AifError as error:
        say(f"warning {error}")
        return None
