"""`aif status --watch`: a sample (inspect.py) drawn on the terminal again and again, or one JSON object a line. Ctrl-C is the ordinary end."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from infra.clock import SystemClock
from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.settings import InfraSettings
from infra.tools.inspect import Inspector, Sample

_LATE_S, _LATE_RECORDS = 2.0, 10_000


def watch_status(settings: InfraSettings, every_s: float, servers: Sequence[str], as_json: bool) -> None:
    """Draws until Ctrl-C."""
    log = ControlLog(open_index_store(settings.index.store))
    with Inspector(settings.connection(), settings.kafka.topic_prefix, log, SystemClock(), servers) as inspector:
        try:
            if as_json or not sys.stdout.isatty():
                _print_lines(inspector, every_s)
            else:
                _draw(inspector, every_s)
        except KeyboardInterrupt:
            return


def _print_lines(inspector: Inspector, every_s: float) -> None:
    while True:
        print(json.dumps(asdict(inspector.sample()), default=str), flush=True)  # noqa: T201 - data on standard output
        time.sleep(every_s)


def _draw(inspector: Inspector, every_s: float) -> None:
    with Live(render_sample(inspector.sample()), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every_s)
            live.update(render_sample(inspector.sample()), refresh=True)


def render_sample(sample: Sample) -> RenderableType:
    """A sample as tables; what is late or missing stands out."""
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
