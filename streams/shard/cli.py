"""`aif shards`: what the shards of a data directory hold, for people, audits and the crash bench. Typer and standard library at module level."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from infra.command import AsJson, print_table
from schemas.errors import AifError, Unavailable

_COUNTED = ("consumed", "applied", "superseded", "dead_lettered")
_COPIES_MAX, _RETRY_S = 5, 0.2


def register(app: typer.Typer) -> None:
    """Register `aif shards`."""
    app.command("shards", short_help="Offsets, counts and versions of every shard.")(show_shards)


def show_shards(
    data_dir: Annotated[
        Path | None, typer.Argument(exists=True, file_okay=False, help="Data directory of a worker (default: AIF_WORKER__DATA_DIR).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Next offsets, counts of updates and versions of every shard in a worker's data directory. Reads a private copy, so the worker may run."""
    from infra.settings import load_settings
    from streams.settings import WorkerSettings

    folder = data_dir or load_settings(WorkerSettings).worker.data_dir
    directories = sorted((folder / "shards").glob("[0-9]" * 5))
    if not directories:
        raise Unavailable("no_shards", f"{folder} has no shards; start `aif worker`, or name the directory that its --data-dir names")
    rows = [describe_shard(directory) for directory in directories]
    print_table("shards", rows if as_json else [_flat(row) for row in rows], as_json)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A shard as a line of a table: a column for each number."""
    counts = row["counts"].values()
    return {
        "shard": row["shard"],
        **{f"next {topic}": offset for topic, offset in sorted(row["next_offsets"].items())},
        **{name.replace("_", " "): sum(count[name] for count in counts) for name in _COUNTED},
        "versions": ", ".join(f"{version} {state}" for version, state in row["versions"].items()),
    }


def describe_shard(directory: Path) -> dict[str, Any]:
    """One shard: a copy of its directory is read, because opening a directory writes into it. What a running worker changes meanwhile makes a copy
    unreadable, so the copy is tried again."""
    for _ in range(_COPIES_MAX - 1):
        try:
            return _read_copy(directory)
        except (AifError, OSError, shutil.Error):
            time.sleep(_RETRY_S)
    return _read_copy(directory)


def _read_copy(directory: Path) -> dict[str, Any]:
    from streams.shard.shard_reader import open_shard_reader

    with tempfile.TemporaryDirectory(prefix="aif-shard-") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(directory, copy)
        with open_shard_reader(copy) as reader:
            counts = {topic: {name: getattr(c, name) for name in _COUNTED} for topic, c in reader.state.counters.items()}
            versions = {version: "behind" if v.behind else "writes" for version, v in sorted(reader.versions.items())}
            return {"shard": int(directory.name), "next_offsets": reader.next_offsets, "counts": counts, "versions": versions}
