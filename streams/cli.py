"""The `aif` commands of `streams`. Only typer and the standard library at module level; heavy imports belong inside the commands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from infra.command import AsJson, print_data, register_settings
from streams.allocation.cli import register as register_allocate
from streams.replay.cli import register as register_replay
from streams.shard.cli import register as register_shards
from streams.training.cli import register as register_train


def commands(app: typer.Typer) -> None:
    """Register the commands of `streams` onto the `aif` application."""
    register_settings("streams.settings:WorkerSettings")
    register_settings("streams.settings:StatisticsSettings")
    app.command("worker", short_help="Nearline: topics in, index versions out.")(worker)
    app.command("statistics", short_help="Nearline: keep counts and rates of items and users current.")(statistics)
    register_shards(app)
    register_replay(app)
    register_train(app)
    register_allocate(app)


def worker(
    data_dir: Annotated[Path | None, typer.Option(help="Where the shards are (default: AIF_WORKER__DATA_DIR).")] = None,
    store: Annotated[str | None, typer.Option(help="The index store: a folder, or s3://bucket/prefix (default: AIF_INDEX__STORE).")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the Prometheus page, on loopback; 0: none (default: AIF_WORKER__METRICS_PORT, 0).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Own shards: read item-features, new-items and model-checkpoints, and write index versions. Runs until SIGTERM or Ctrl-C.

    Prints where its data is, then one JSON line {"ready": true, ...} once it consumes. Exit code 78: another start would end in the same way, an
    operator must decide. Exit code 70: an unknown fault, start it again.
    """
    from infra.fork_server import import_single_threaded

    import_single_threaded(["streams.settings"])  # whatever comes later, NumPy has no threads: builders are forked from this process
    from infra.logs import open_logs
    from infra.settings import load_settings
    from streams.settings import WorkerSettings

    flags: dict[str, dict[str, Any]] = {"worker": {"data_dir": data_dir, "metrics_port": metrics_port}, "index": {"store": store}}
    settings = load_settings(WorkerSettings, flags)
    open_logs("worker", settings.log.level, settings.log.format)
    where = {
        "data_dir": str(settings.worker.data_dir.resolve()),
        "index_store": settings.index.store,
        "kafka": str(settings.connection()),
        "topic_prefix": settings.kafka.topic_prefix,
    }
    print_data(where, as_json)

    import_single_threaded(["streams.worker"])
    from streams.worker import run_worker

    run_worker(settings)


def statistics(
    data_dir: Annotated[Path | None, typer.Option(help="Where the counters are (default: AIF_STATISTICS__DATA_DIR).")] = None,
    store: Annotated[str | None, typer.Option(help="The index store: a folder, or s3://bucket/prefix (default: AIF_INDEX__STORE).")] = None,
    as_json: AsJson = False,
) -> None:
    """Count user-behaviours and impressions, and keep the statistics current that the live checkpoint names. Runs until SIGTERM or Ctrl-C.

    Prints one JSON line {"ready": true, "statistics": [...]} once it counts. Of several processes one counts, and another takes over when it ends.
    Exit code 78: another start would end in the same way. Exit code 70: an unknown fault, start it again.
    """
    from infra.logs import open_logs
    from infra.settings import load_settings
    from streams.settings import StatisticsSettings

    flags: dict[str, dict[str, Any]] = {"statistics": {"data_dir": data_dir}, "index": {"store": store}}
    settings = load_settings(StatisticsSettings, flags)
    open_logs("statistics", settings.log.level, settings.log.format)
    where = {"data_dir": str(settings.statistics.data_dir.resolve()), "kafka": str(settings.connection())}
    print_data(where, as_json)

    from streams.statistics.program import run_statistics

    run_statistics(settings)
