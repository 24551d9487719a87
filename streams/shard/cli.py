"""`aif shards`: what the shards of a data directory hold, for people, audits and the crash bench. Typer and standard library at module level."""

from pathlib import Path
from typing import Annotated, Any

import typer

from infra.command import AsJson, print_table


def register(app: typer.Typer) -> None:
    """Register `aif shards`."""
    app.command("shards", short_help="Offsets, counts and versions of every shard.")(show_shards)


def show_shards(
    data_dir: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Data directory of a stopped worker.")],
    as_json: AsJson = False,
) -> None:
    """Next offsets, counts of updates and versions of every shard in the data directory of a worker that has ended. Reads a private copy."""
    directories = sorted((data_dir / "shards").glob("[0-9]" * 5))
    if not directories:
        raise typer.BadParameter(f"{data_dir} has no shards; expected what `aif worker --data-dir` names (default: AIF_WORKER__DATA_DIR)")
    print_table("shards", [describe_shard(directory) for directory in directories], as_json)


def describe_shard(directory: Path) -> dict[str, Any]:
    """One shard: a copy of its directory is read, because opening a directory writes into it."""
    import shutil
    import tempfile

    from streams.shard.reader import open_shard_reader

    with tempfile.TemporaryDirectory(prefix="aif-shard-") as folder:
        copy = Path(folder, "copy")
        shutil.copytree(directory, copy)
        with open_shard_reader(copy) as reader:
            counts = {
                topic: {name: getattr(c, name) for name in ("consumed", "applied", "superseded", "dead_lettered")}
                for topic, c in reader.state.counters.items()
            }
            versions = {version: "behind" if v.behind else "writes" for version, v in sorted(reader.versions.items())}
            return {"shard": int(directory.name), "next_offsets": reader.next_offsets, "counts": counts, "versions": versions}
