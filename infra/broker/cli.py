"""`aif broker start|status|stop`: the local Kafka of this user."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.command import AsJson, print_data, say

if TYPE_CHECKING:
    from infra.settings import BrokerSettings

broker_app = typer.Typer(help="The local Kafka broker: real Apache Kafka on loopback.", no_args_is_help=True)

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Its data directory (default: AIF_BROKER__DATA_DIR).")]


@broker_app.command()
def start(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Start the broker, wait until it answers, and leave it running. The first start downloads 44 MB."""
    from infra.broker.server import start_broker

    settings = _settings(data_dir)
    say(f"starting Kafka on {settings.data_dir} ...")
    broker = start_broker(settings.data_dir, detach=True, maven_url=settings.maven_url)
    print_data({"bootstrap_servers": broker.bootstrap_servers, "pid": broker.record.pid, "data_dir": broker.data_dir}, as_json)


@broker_app.command()
def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Say whether the broker runs and answers. Exit code 0 when it does, 1 when not."""
    from infra.broker.record import is_held, read_record
    from infra.broker.server import answers

    folder = _settings(data_dir).data_dir
    record = read_record(folder) if is_held(folder) else None
    answering = record is not None and answers(record.bootstrap_servers)
    data: dict[str, object] = {"state": _state(is_held(folder), answering), "data_dir": folder}
    if record is not None:
        data |= {"bootstrap_servers": record.bootstrap_servers, "pid": record.pid}
    print_data(data, as_json)
    if not answering:
        raise typer.Exit(1)


@broker_app.command()
def stop(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop the broker and wait until it has ended. Its data stays."""
    from infra.broker.server import stop_broker

    folder = _settings(data_dir).data_dir
    record = stop_broker(folder)
    print_data({"state": "stopped" if record else "was not running", "data_dir": folder}, as_json)


def _settings(data_dir: Path | None) -> "BrokerSettings":
    from infra.settings import InfraSettings, load_settings

    return load_settings(InfraSettings, {"broker": {"data_dir": data_dir}}).broker


def _state(held: bool, answering: bool) -> str:
    if answering:
        return "running"
    return "held, not answering" if held else "stopped"
