"""`aif topics plan|apply|schemas` and `aif publish items|new-items|behaviours|users|checkpoint FILE`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.clock import SystemClock
from infra.command import AsJson, print_data, print_table, read_settings, say
from schemas.ids import IdKind

if TYPE_CHECKING:
    from infra.kafka.admin import TopicChange

topics_app = typer.Typer(help="The topics of the index on the broker.", no_args_is_help=True)
publish_app = typer.Typer(help="Publish events from a file.", no_args_is_help=True)

Events = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="One JSON event a line.")]


# --- topics ----------------------------------------------------------------------------------------------------------


@topics_app.command()
def plan(as_json: AsJson = False) -> None:
    """Print what `apply` would change, and `surplus` partitions and `larger` settings, which it leaves alone. Exit code 0 also when there is something."""
    from infra.index.control_log import check_index_settings, read_state
    from infra.index.store import find_index_store
    from infra.kafka.admin import fetch_topics, plan_topics

    settings = read_settings()
    prefix, index = settings.kafka.topic_prefix, settings.index
    check_index_settings(read_state(find_index_store(index.store, look=False)), prefix, index.shards, index.user_partitions, index.id_kind)
    found = fetch_topics(settings.connection(), prefix, settings=True)
    _print_changes(plan_topics(found, index.shards, index.user_partitions), as_json)


@topics_app.command(short_help="Create and change topics until they are as planned.")
def apply(
    allow_growth: Annotated[
        bool, typer.Option("--allow-growth", help="Allow more partitions: ids move, so a new index must be built.")
    ] = False,
    allow_cleanup: Annotated[bool, typer.Option("--allow-cleanup", help="Another cleanup policy: the broker may remove records.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create and change topics until they are those of the table, and give an empty index store its identity."""
    from infra.index.control_log import ControlLog, check_index_settings, ensure_init
    from infra.index.store import open_index_store
    from infra.kafka.admin import CLEANUP, GROW, apply_topics, describe_index

    settings = read_settings()
    bootstrap, prefix, index = settings.connection(), settings.kafka.topic_prefix, settings.index
    allow = [kind for kind, given in ((GROW, allow_growth), (CLEANUP, allow_cleanup)) if given]
    log = ControlLog(open_index_store(index.store))
    check_index_settings(log.refresh(), prefix, index.shards, index.user_partitions, index.id_kind)  # before a topic is changed
    changes = apply_topics(bootstrap, prefix, index.shards, index.user_partitions, allow=allow)
    init = describe_index(bootstrap, prefix, index.shards, index.user_partitions, index.id_kind)
    ensure_init(log, init, SystemClock().now_ms(), "aif topics apply")
    _print_changes(changes, as_json)


@topics_app.command("schemas", short_help="Check or write the JSON Schema and AsyncAPI files.")
def json_schemas(
    write: Annotated[bool, typer.Option("--write", help="Write the files that are stale.")] = False, as_json: AsJson = False
) -> None:
    """Check the JSON Schema files and the AsyncAPI document against the models. Exit code 1 when one is stale and was not written.

    A model that refuses what any earlier schema accepted is an error, and nothing is written.
    """
    from infra.kafka.json_schemas import checkout, find_stale_files, write_schema_files

    stale = write_schema_files(checkout()) if write else find_stale_files(checkout())
    print_data({"written" if write else "stale": [str(file) for file in stale]}, as_json)
    if stale and not write:
        raise typer.Exit(1)


def _print_changes(changes: "Sequence[TopicChange]", as_json: bool) -> None:
    if not changes and not as_json:
        typer.echo("nothing to change")
        return
    rows = [{"change": c.kind, "topic": c.topic, "is": c.before, "becomes": c.after} for c in changes]
    print_table("changes", rows, as_json)


# --- publish ---------------------------------------------------------------------------------------------------------


@publish_app.command(short_help="Item features and deletes.")
def items(file: Events, as_json: AsJson = False) -> None:
    """Item features and deletes: {"item_id", "version", "features"} or {"op": "delete", "item_id", "version"}.

    For example {"item_id": 42, "version": 7, "features": {"category": "shoes", "price": 59.9}}: all features of the item, of the schema
    that the model was trained with. The higher version wins. Exit code 1 when a line was rejected; the others are sent.
    """
    _publish_lines("items", file, as_json)


@publish_app.command("new-items", short_help='Multimodal embeddings: {"item_id", "embedding"}.')
def new_items(file: Events, as_json: AsJson = False) -> None:
    """Multimodal embeddings: {"item_id", "embedding"}, a list of numbers. Exit code 1 when a line was rejected; the others are sent."""
    _publish_lines("new-items", file, as_json)


@publish_app.command(short_help="Behaviours of users.")
def behaviours(file: Events, as_json: AsJson = False) -> None:
    """What users did: {"user_id", "item_id", "kind", "time_ms", "features"}; time_ms is milliseconds since 1970.

    Exit code 1 when a line was rejected; the others are sent.
    """
    _publish_lines("behaviours", file, as_json)


@publish_app.command()
def users(file: Events, as_json: AsJson = False) -> None:
    """Profiles of users: {"user_id", "features"}. Exit code 1 when a line was rejected; the others are sent."""
    _publish_lines("users", file, as_json)


@publish_app.command()
def checkpoint(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A safetensors file as `aif train` writes it.")],
    label: Annotated[
        str | None, typer.Option(help="A name for people, shown by `aif index list`: letters, digits and _ . : -, at most 64.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Also run the model's network once before it is announced, as a worker does.")] = True,
    as_json: AsJson = False,
) -> None:
    """Upload a checkpoint to the index store and announce it. The offset of the record is the number of the version that it becomes."""
    from infra.index.store import open_index_store
    from infra.kafka.publisher import open_publisher

    settings = read_settings()
    if check:
        from schemas.model.checkpoint import read_checkpoint

        read_checkpoint(file)
    with open_publisher(settings, "aif-publish") as publisher:
        delivered = publisher.publish_checkpoint_file(open_index_store(settings.index.store), file, label)
    print_data({"version": delivered.offset, "file": file.resolve()}, as_json)


def _publish_lines(kind: str, file: Path, as_json: bool) -> None:
    """Publish the events of a file; exit code 1 when a line was rejected (the others are sent)."""
    from infra.kafka.json_lines import JsonLines, event_types
    from infra.kafka.publisher import open_publisher
    from infra.progress import open_progress

    settings, began = read_settings(), time.monotonic()
    with open_progress() as progress, open_publisher(settings, "aif-publish") as publisher:
        task = progress.add_task("bytes read", total=file.stat().st_size)
        lines = JsonLines(file, event_types()[kind], IdKind(settings.index.id_kind), lambda read: progress.advance(task, read))
        send: dict[str, Callable[[Any], int]] = {
            "items": publisher.publish_items,
            "new-items": publisher.publish_new_items,
            "behaviours": publisher.publish_behaviours,
            "users": publisher.publish_users,
        }
        sent = send[kind](lines)
        publisher.flush()
    for reason in lines.reasons:
        say(f"rejected {reason}")
    seconds = round(time.monotonic() - began, 3)
    print_data({"published": sent, "rejected": lines.rejected, "seconds": seconds}, as_json)
    if lines.rejected:
        raise typer.Exit(1)
