"""The example at the end of each command's help: commands that work as they are written on a running system.

One list for the whole command line, so that it can be read and compared in one place (tests/infra/test_examples.py compares it with the commands).
Where an example needs a file, the file is one of yours.
"""

from collections.abc import Iterator, Mapping

import typer

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "import": ("aif import DIR --mapping shop.toml --dry-run", "aif import DIR --mapping shop.toml --model-out shop.json"),
    "status": ("aif status", "aif status --watch"),
    "doctor": ("aif doctor",),
    "serve": ("aif serve", "aif serve --port 8100 --device cpu"),
    "query": ("aif query", "aif query 1 --random 20 --trace"),
    "allocate fit": ("aif allocate fit --version 7", "aif allocate fit --version 7 --budget 0.3 --publish"),
    "allocate show": ("aif allocate show", "aif allocate show --version 7"),
    "allocate replay": ("aif allocate replay --version 7",),
    "allocate mode": ("aif allocate mode", "aif allocate mode queue"),
    "allocate explain": ("aif allocate explain 0123456789abcdef",),
    "verify-answers": ("aif verify-answers",),
    "worker": ("aif worker", "aif worker --metrics-port 9100"),
    "statistics": ("aif statistics",),
    "shards": ("aif shards",),
    "replay": ("aif replay --dry-run", "aif replay"),
    "train": ("aif train --model shop.json --out checkpoints --publish", "aif train --follow --out checkpoints"),
    "export": ("aif export",),
    "broker start": ("aif broker start",),
    "broker status": ("aif broker status",),
    "broker stop": ("aif broker stop",),
    "config show": ("aif config show", "aif config show --json"),
    "topics plan": ("aif topics plan",),
    "topics apply": ("aif topics apply",),
    "topics schemas": ("aif topics schemas",),
    "publish items": ("aif publish items items.jsonl",),
    "publish new-items": ("aif publish new-items embeddings.jsonl",),
    "publish behaviours": ("aif publish behaviours behaviours.jsonl",),
    "publish users": ("aif publish users users.jsonl",),
    "publish checkpoint": ("aif publish checkpoint checkpoints/aif-0000.safetensors",),
    "index list": ("aif index list", "aif index list --all"),
    "index show": ("aif index show",),
    "index verify": ("aif index verify",),
    "index diff": ("aif index diff", "aif index diff 2 live"),
    "index promote": ("aif index promote 3 --reason 'better recall offline'",),
    "index rollback": ("aif index rollback", "aif index rollback 2"),
    "index revise": ("aif index revise",),
    "index pin": ("aif index pin 3 --reason 'holiday freeze'",),
    "index unpin": ("aif index unpin",),
    "index hold": ("aif index hold --reason 'under investigation'",),
    "index release": ("aif index release",),
    "index approve": ("aif index approve 4 --reason 'the canary pairs were too few'",),
    "index abort": ("aif index abort 5",),
    "index drop": ("aif index drop 1",),
    "model show": ("aif model show", "aif model show checkpoints/aif-0000.safetensors"),
    "dlq list": ("aif dlq list", "aif dlq list item-features --left"),
    "dlq show": ("aif dlq show item-features 0 17",),
    "dlq redrive": ("aif dlq redrive item-features --dry-run", "aif dlq redrive item-features"),
    "demo": ("aif demo", "aif demo --keep"),
    "demo stop": ("aif demo stop",),
    "bench keep": ("aif bench keep freshness.json",),
    "bench report": ("aif bench report",),
    "bench statistics": ("aif bench statistics --rate 500 --items 2000 --seconds 10",),
    "bench freshness": ("aif bench freshness --items 20000 --seconds 10",),
    "bench crash": ("aif bench crash --kills 5",),
    "bench scale": ("aif bench scale",),
    "bench rank": ("aif bench rank",),
    "bench device": ("aif bench device",),
    "bench relay": ("aif bench relay",),
    "bench allocation": ("aif bench allocation --json", "aif bench allocation --seconds 4 --turns 1"),
    "bench overload": ("aif bench overload",),
    "bench soak": ("aif bench soak",),
    "bench table1": ("aif bench table1",),
    "bench table4": ("aif bench table4",),
    "bench switch": ("aif bench switch",),
    "bench affinity": ("aif bench affinity",),
    "bench nearline": ("aif bench nearline --items 20000",),
    "eval tables": ("aif eval tables --quick",),
    "eval data": ("aif eval data DIR --mapping shop.toml",),
    "eval history": ("aif eval history --quick",),
    "eval relay": ("aif eval relay --json",),
    "eval allocation": ("aif eval allocation --quick",),
    "eval online": ("aif eval online --quick",),
}


def add_examples(app: typer.Typer) -> None:
    """End the help of every command of `app` with its example."""
    for path, info in commands_of(app):
        if path in EXAMPLES:
            info.epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])


def commands_of(app: typer.Typer, before: str = "") -> Iterator[tuple[str, typer.models.CommandInfo | typer.models.TyperInfo]]:
    """Every command of an application with its path ("index diff"), and each group that is a command itself."""
    for command in app.registered_commands:
        assert command.callback is not None
        yield before + (command.name or command.callback.__name__.replace("_", "-")), command
    for group in app.registered_groups:
        assert group.typer_instance is not None and group.name
        yield before + group.name, group
        yield from commands_of(group.typer_instance, f"{before}{group.name} ")
