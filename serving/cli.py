"""The `aif` commands of `serving`: serve, query, verify-answers. Only typer and the standard library at module level; heavy imports belong
inside the commands."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.command import AsJson, group_of, print_data, print_parts, print_table, register_settings, say

if TYPE_CHECKING:
    from schemas.requests import RankAnswer

Url = Annotated[str | None, typer.Option("--url", help="The server (default: the one of AIF_SERVE__HOST and _PORT).")]
Store = Annotated[str | None, typer.Option("--store", help="The index store: a folder, or s3://bucket/prefix (default: AIF_INDEX__STORE).")]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap", help="The Kafka broker (default: AIF_KAFKA__BOOTSTRAP_SERVERS).")]


def commands(app: typer.Typer) -> None:
    """Register the commands of `serving` onto the `aif` application."""
    register_settings("serving.settings:ServerSettings")
    app.command("serve", short_help="Online: rankings over HTTP and gRPC.")(serve)
    app.command("query", short_help="Rank candidates for one user.")(query)
    allocate = group_of(app, "allocate", "How much work each request gets: fit, look, explain.")
    allocate.command("mode", short_help="Show or switch what a server may do.")(allocation_mode)
    allocate.command("explain", short_help="A recent decision of a server, made again.")(explain_allocation)
    app.command("verify-answers", short_help="Recompute answers with the reference model.")(verify_answers)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: AIF_SERVE__HOST, loopback).")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 = any free one (default: AIF_SERVE__PORT, 8100).")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="Port of gRPC; 0 = any free one (default: the next one).")] = None,
    store: Store = None,
    bootstrap: Bootstrap = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: AIF_ENGINE__DEVICE, cpu).")] = None,
    address_file: Annotated[Path | None, typer.Option(help="Write {url, grpc, pid} here once the ports are open.")] = None,
) -> None:
    """Serve rankings: follow the control log, load versions, answer requests. Ends cleanly on SIGTERM or Ctrl-C.

    Off loopback AIF_SERVE__TOKEN (16 characters or more) must be set, and requests send `Authorization: Bearer TOKEN`; AIF_SERVE__TLS_CERT and
    AIF_SERVE__TLS_KEY (PEM files, read at the start) make both ports TLS. Load balancers ask /v2/health/live and /v2/health/ready, Prometheus /metrics (with
    the token). After SIGTERM it answers on, not ready, for AIF_SERVE__LEAVE_S seconds, and waits AIF_SERVE__DRAIN_S for running requests. The other
    settings: `aif config show`.
    """
    import asyncio
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its lines of information are no JSON

    from infra.fork_server import import_single_threaded

    import_single_threaded(["serving.settings"])  # BLAS's own threads would wait for cores that the engine's threads have
    from infra.logs import open_logs
    from infra.processes import raise_file_limit
    from infra.settings import load_settings
    from serving.settings import ServerSettings

    flags: dict[str, dict[str, object]] = {
        "serve": {"host": host, "port": port, "grpc_port": grpc_port, "address_file": address_file},
        "index": {"store": store},
        "kafka": {"bootstrap_servers": bootstrap},
        "engine": {"device": device},
    }
    settings = load_settings(ServerSettings, flags)
    open_logs("server", settings.log.level, settings.log.format)
    raise_file_limit()

    import_single_threaded(["serving.server"])
    from serving.server import serve as run_server

    asyncio.run(run_server(settings, lambda url: typer.echo(f"listening on {url}")))


def query(
    user: Annotated[str | None, typer.Argument(help="The user's id (default: the first user on the topic of behaviours).")] = None,
    items: Annotated[Path | None, typer.Option(help="Candidates: a file with one id a line.")] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Candidates: this many items of the live version, drawn at random (default: 1000).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --random.")] = 0,
    top_k: Annotated[int, typer.Option(min=1, help="How many to show.")] = 10,
    deadline_ms: Annotated[int, typer.Option(min=1, help="Time the server may take, in milliseconds.")] = 2_000,
    trace: Annotated[bool, typer.Option("--trace", help="Use two calls, as a merger does, and draw the times.")] = False,
    retrieval: Annotated[
        str, typer.Option(help="With --trace: how long retrieval takes; fixed:MS, uniform:MS,MS, lognormal:MS,SIGMA.")
    ] = "fixed:30",
    record: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Read the user's history from the topics, send it with the request, and append request and answer for `aif verify-answers`.",
        ),
    ] = None,
    url: Url = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Rank candidates for one user and print the best."""
    from infra.settings import load_settings
    from serving.audit.topic_history import find_users
    from serving.query import ask, draw_items, read_items
    from serving.settings import ServerSettings

    if items is not None and random is not None:
        raise typer.BadParameter("--items and --random both name the candidates; give one of them")
    if trace and record is not None:
        raise typer.BadParameter("--trace and --record are two kinds of request; give one of them")
    settings = load_settings(ServerSettings, {"index": {"store": store}})
    if user is None:
        (user,) = find_users(settings, 1)
        say(f"user {user}, the first on the topic of behaviours")
    candidates = read_items(items) if items is not None else draw_items(settings.index.store, random or 1_000, seed)
    if trace:
        from serving.audit.topic_history import describe_superseded
        from serving.merger.trace import trace_request

        merged, lines = trace_request(settings, url, user, candidates, top_k, deadline_ms, retrieval)
        say("\n".join([*lines, *describe_superseded(settings, candidates)]))
        answer = merged.answer
    else:
        answer = ask(settings, url, user, {"item_ids": candidates, "top_k": top_k, "deadline_ms": deadline_ms}, record)
    if as_json:
        typer.echo(answer.model_dump_json())
    else:
        _print_answer(answer)


def allocation_mode(
    mode: Annotated[str | None, typer.Argument(help="off, shadow, queue or value (default: only show).")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show how much work requests get on a server: mode, price, table, actions; with MODE, switch it until the server ends."""
    from infra.settings import load_settings
    from serving.client import client_of
    from serving.settings import ServerSettings

    with client_of(load_settings(ServerSettings).serve, url) as client:
        print_data(client.allocation() if mode is None else client.switch_allocation(mode), as_json)


def explain_allocation(
    request_id: Annotated[str, typer.Argument(help="The request_id of an answer.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show why a request got the work that it got: its receipt, the inputs, each action's value and cost, and a recomputation of the decision."""
    from infra.settings import load_settings
    from serving.client import client_of
    from serving.settings import ServerSettings

    with client_of(load_settings(ServerSettings).serve, url) as client:
        explained = client.explain_allocation(request_id)
    actions = explained.pop("actions")
    flat = {**explained.pop("receipt"), **explained.pop("inputs"), **explained}
    print_parts(flat, {"actions": actions}, as_json)


def verify_answers(
    file: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="What `aif query --record` or a server with AIF_SERVE__RECORD_FILE wrote: JSON lines "
            "{request: body of /v1/prerank, answer: its answer, history: {features, behaviours} unless the request has them}. "
            "Default: three rankings that the running server is asked for now.",
        ),
    ] = None,
    sample: Annotated[int | None, typer.Option(min=1, help="Recompute only this many, drawn evenly.")] = None,
    url: Url = None,
    store: Store = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Recompute answers with the reference model from the files of the version each names; count those that equal none.

    Exit code 1 if an answer equals no version.
    """
    from infra.progress import open_progress, tell_parts
    from infra.settings import load_settings
    from serving.audit.parity import recompute
    from serving.audit.recorded_answers import read_answers
    from serving.settings import ServerSettings

    settings = load_settings(ServerSettings, {"index": {"store": store}, "kafka": {"bootstrap_servers": bootstrap}})
    if file is None:
        from serving.query import ask_answers

        answers = ask_answers(settings, url)
    else:
        answers = read_answers(file)
    say(f"recomputing {len(answers) if sample is None else min(sample, len(answers))} of {len(answers)} answers ...")
    with open_progress() as progress:
        tell = tell_parts(progress)
        report = recompute(
            answers,
            settings.index.store,
            settings.connection(),
            settings.kafka.topic_prefix,
            sample,
            lambda done, of: tell("answers recomputed", done, of),
        )
    if as_json:
        report.figures(file.name if file else "asked now", sample).print_json()
    else:
        typer.echo(report.describe())
    if report.mismatched:
        raise typer.Exit(1)


def _print_answer(answer: "RankAnswer") -> None:
    rows = [
        {"rank": rank, "item": item.item_id, "score": f"{item.score:.6g}", "probability": f"{item.probabilities[0]:.4f}"}
        for rank, item in enumerate(answer.items, 1)
    ]
    print_table("items", rows, False)
    age = "of unknown age" if answer.freshness.age_s is None else f"{answer.freshness.age_s:.1f} s old"
    if answer.freshness.lagging_shards:
        age += f", shards {answer.freshness.lagging_shards} lag"
    typer.echo(f"version {answer.version_token}  user half {answer.rung}  rows {age}  {answer.took_ms:.1f} ms in the server")
    if answer.degraded:
        unknown = f" ({answer.unknown_count} of {answer.candidates} candidates unknown)" if answer.unknown_count else ""
        typer.echo(f"degraded: {', '.join(answer.degraded)}{unknown}")
