"""`aif replay`: read the topics again from the log start and compare the digest with the live one. Only typer and the standard library here."""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.command import AsJson, print_table, say

if TYPE_CHECKING:
    from streams.replay import Replayed


def register(app: typer.Typer) -> None:
    """Register `replay` onto the `aif` application."""
    app.command("replay")(replay)


def replay(
    start: Annotated[str, typer.Option("--from", help="Where to begin: earliest (offset 0).")] = "earliest",
    to: Annotated[str, typer.Option("--to", help="live, or a revision as V.R or a version token.")] = "live",
    directory: Annotated[Path | None, typer.Option(help="An empty directory to keep; default: a temporary one.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=10_000, help="Records of one batch; not the worker's.")] = 97,
    store: Annotated[str | None, typer.Option(help="The index store, a folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a version from the topics alone, in a fresh directory, and print its digest beside that of its manifest.

    Exit code 0 when it ran, whatever the digests say.
    """
    from infra.clock import SystemClock
    from infra.control_log import ControlLog
    from infra.index_store import open_index_store
    from infra.settings import InfraSettings, load_settings
    from schemas.errors import Misconfigured
    from streams.replay import ReplaySource, choose_manifest, run_replay

    if start != "earliest":
        raise Misconfigured("replay_from", f"--from {start!r} is not possible; give earliest, or leave it out")
    settings = load_settings(InfraSettings, {"index": {"store": store}})
    index_store = open_index_store(settings.index.store)
    state = ControlLog(index_store).refresh()
    manifest = choose_manifest(index_store, state, to)
    assert state.init is not None
    source = ReplaySource(settings.bootstrap_servers(), settings.kafka.topic_prefix, state.init, index_store)
    say(f"replaying version {manifest.version}.{manifest.revision} from offset 0")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aif-replay-")))
        progress = stack.enter_context(_progress_bar())
        outcome = run_replay(source, manifest, folder, SystemClock(), batch_size, progress)
    _print(outcome, batch_size, time.monotonic() - began, as_json)


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for each step; gives the function that moves it."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def _print(outcome: "Replayed", batch_size: int, seconds: float, as_json: bool) -> None:
    from infra.bench.report import Figures

    manifest = outcome.manifest
    if as_json:
        config = {
            "version": f"{manifest.version}.{manifest.revision}",
            "batch_size": batch_size,
            "digest": outcome.digest,
            "live_digest": manifest.digest,
            "data_digest": outcome.data_digest,
            "live_data_digest": manifest.data_digest,
            "encoder_fingerprint": outcome.encoder_fingerprint,
            "live_encoder_fingerprint": manifest.encoder_fingerprint,
        }
        figures = Figures("replay", config)
        figures.add("digest_equal", int(outcome.digest_equal), "bool")
        figures.add("data_digest_equal", int(outcome.data_digest_equal), "bool")
        figures.add("items", sum(s.rows for s in outcome.shards), "count")
        figures.add("records", sum(s.records for s in outcome.shards), "records")
        figures.add("replay_s", seconds, "s")
        figures.print_json()
        return
    rows: list[dict[str, object]] = [
        {"shard": s.shard, "records": s.records, "rows": s.rows, "replayed": s.digest[:16], "live": s.seal.digest[:16], "equal": s.equal}
        for s in outcome.shards
    ]
    print_table("shards", rows, False)
    for name, ours, live in (("digest", outcome.digest, manifest.digest), ("data digest", outcome.data_digest, manifest.data_digest)):
        typer.echo(f"{name:<12} replayed {ours}\n{'':<12} live     {live}   {'equal' if ours == live else 'DIFFERENT'}")
    if not outcome.digest_equal and outcome.data_digest_equal:
        typer.echo(
            f"same inputs, other arithmetic: encoder here {outcome.encoder_fingerprint}, of the version {manifest.encoder_fingerprint}"
        )
