"""The command line `aif`: collects the commands of all parts, runs one, and turns errors into one message.

Each other group is next to the code that it drives and is registered in `commands` below:

    broker start|status|stop         infra/broker/cli.py
    topics, publish                  infra/kafka/cli.py
    dlq                              infra/kafka/dlq_cli.py
    index, model                     infra/index/cli.py
    doctor, status                   infra/tools/cli.py
    import                           infra/data/cli.py

Standard library and typer only, so that `aif --help` starts in a fraction of a second (a test holds that); heavy modules are imported inside
the commands. Exit codes: infra/command.py.
"""

import errno
import importlib.metadata
import json
import sys
from dataclasses import asdict
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from infra.broker.cli import broker_app
from infra.command import CHOICES, SETTINGS_CLASSES, AsJson, print_table, say
from infra.data.cli import register as register_import
from infra.extras import ALL, EXTRA_OF_COMMAND, name_missing_extra
from infra.index.cli import index_app, model_app
from infra.kafka.cli import publish_app, topics_app
from infra.kafka.dlq_cli import register as register_dlq
from infra.tools.cli import doctor, status
from schemas.errors import AifError, Misconfigured, lack_of_memory

ENTRY_POINTS = "aif.commands"
_EPILOG = (
    "Settings: an option, else AIF_<SECTION>__<NAME> in the environment, else the TOML file that AIF_CONFIG names, else the default "
    "(`aif config show`). Exit codes: 0 done, 1 an error or something found wrong, 2 wrong usage, 130 Ctrl-C."
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})


config_app = typer.Typer(help="Settings and where each comes from.", no_args_is_help=True)


def main() -> None:
    """Run the command line. An AifError, a path that cannot be used, or a lack of memory becomes one message and exit code 1.

    A Ctrl-C in a command is exit code 130 (infra/main.py says a word).
    """
    try:
        build_app()()
    except AifError as error:
        _print_error(error)
        sys.exit(1)
    except ModuleNotFoundError as error:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        _print_error(name_missing_extra(error, f"aif {command}".rstrip(), EXTRA_OF_COMMAND.get(command, ALL)))
        sys.exit(1)
    except OSError as error:
        if error.errno not in _FULL and (error.errno not in _UNUSABLE or error.filename is None):
            raise  # a bug of ours: a file that is missing, a process that is gone
        what_next = "make room, or give" if error.errno in _FULL else "make it writable, or give"
        _print_error(
            Misconfigured("path_unusable", f"{error}; {what_next} another path (the command's option, or its setting: `aif config show`)")
        )
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if (lack := lack_of_memory(error)) is None:
            raise
        _print_error(lack)
        sys.exit(1)


def build_app() -> typer.Typer:
    """The application with the commands of every installed part."""
    app = typer.Typer(
        name="aif",
        help="Pre-ranking with asynchronous item vectors: publish events, build versions, serve rankings.",
        no_args_is_help=True,
        rich_markup_mode=None,  # rich triples the start time
        pretty_exceptions_enable=False,
        add_completion=True,
        epilog=_EPILOG,
        context_settings={"max_content_width": 120},  # whole sentences in the list of commands, where the terminal has room
    )
    app.callback()(_options)
    for entry_point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda found: found.name):
        entry_point.load()(app)
    from infra.examples import add_examples

    add_examples(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"aif {importlib.metadata.version('aif')}")
        raise typer.Exit


def _options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")] = False,
) -> None:
    """Options of `aif` itself; the help is that of the application."""


def commands(app: typer.Typer) -> None:
    """Register the commands of `infra` onto the `aif` application."""
    app.add_typer(broker_app, name="broker")
    app.add_typer(config_app, name="config")
    app.add_typer(topics_app, name="topics")
    app.add_typer(publish_app, name="publish")
    register_import(app)
    app.add_typer(index_app, name="index")
    app.add_typer(model_app, name="model")
    app.command("status", short_help="The broker and its topics, the versions and their age.")(status)
    app.command("doctor", short_help="Check the broker, topics, disk, index store and settings.")(doctor)
    register_dlq(app)


@config_app.command("show")
def show_config(
    model: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A model's file, whose [train] says how to train: choices, not settings."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Every setting of every process: its value and its origin (default, file, environment). With an index store in S3 also its AWS_... variables.

    The setting kafka.topic_prefix is AIF_KAFKA__TOPIC_PREFIX in the environment (two underscores between section and name), or
    [kafka] topic_prefix in the TOML file that AIF_CONFIG names; a command's own option comes before both.

    The choices of a model's file stand with them; no variable sets those, but `aif train --set`.
    """
    from infra.settings import SettingValue, explain_object_store, explain_settings, unit_of

    rows: dict[str, dict[str, object]] = {}
    for path in SETTINGS_CLASSES:
        rows |= {setting.name: asdict(setting) for setting in explain_settings(resolve_name(path))}
    rows |= {setting.name: asdict(setting) for setting in explain_object_store(str(rows["index.store"]["value"]))}
    for section, path in CHOICES.items():
        for choice in resolve_name(path)(model):
            name = f"{section}.{choice['name']}"
            rows[name] = asdict(SettingValue(name, choice["value"], choice["origin"], unit_of(name), choice.get("meaning", "")))
    print_table("settings", [rows[name] for name in sorted(rows)], as_json)


def _print_error(error: AifError) -> None:
    if "--json" in sys.argv:
        print(json.dumps({"error": {"code": error.code, "message": error.message}}), file=sys.stderr)
    else:
        say(f"error {error}")
