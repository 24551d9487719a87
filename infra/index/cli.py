"""`aif index ...` and `aif model show`: which versions there are, whether they are whole, and decisions about them.

Every decision is one entry in the control log, checked against its fold before it is written; workers and servers follow the log.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.clock import SystemClock
from infra.command import AsJson, print_data, print_parts, print_table, read_settings, say
from schemas.errors import AifError, Incompatible
from schemas.index.lifecycle import Cause, EntryKind, State

if TYPE_CHECKING:
    from infra.index.control_log import ControlLog
    from infra.settings import InfraSettings
    from schemas.index.control import ControlState, VersionStatus

index_app = typer.Typer(help="Versions of the index: look, verify, decide.", no_args_is_help=True)
model_app = typer.Typer(help="Model checkpoints.", no_args_is_help=True)

Version = Annotated[int, typer.Argument(min=0, help="The version number (`aif index list`).")]
OptionalVersion = Annotated[int | None, typer.Argument(min=0, help="The version number; default: the served one.")]
FormerVersion = Annotated[int | None, typer.Argument(min=0, help="The version number; default: the backup (`aif status`).")]
Reason = Annotated[str, typer.Option(help="The reason, kept in the control log.")]
Force = Annotated[bool, typer.Option("--force", help="Also if the version's rows are behind those of the others.")]
_BY = "aif index"
_LISTED, _LIST_COLUMNS = 10, ("version", "state", "mark", "model", "label", "age_s", "reason")
_FEATURE_COLUMNS = ("scope", "kind", "buckets", "width", "transform", "realtime")


# --- looking ---------------------------------------------------------------------------------------------------------


@index_app.command("list")
def list_versions(
    every: Annotated[bool, typer.Option("--all", help="Print every version with all columns.")] = False, as_json: AsJson = False
) -> None:
    """The newest ten versions with their states, the newest first."""
    from infra.index.describe import describe_versions

    log = _open_log()
    rows = describe_versions(log.refresh(), log.store, SystemClock().now_ms())
    if not (every or as_json):
        if len(rows) > _LISTED:
            say(f"{len(rows) - _LISTED} older versions are not listed; --all lists them")
        rows = [{column: row[column] for column in _LIST_COLUMNS} for row in rows[:_LISTED]]
    print_table("versions", rows, as_json)


@index_app.command(short_help="Show one version: its state, its manifest, its files.")
def show(version: OptionalVersion = None, as_json: AsJson = False) -> None:
    """One version: its state, what its manifest names, and what of its files will be removed when."""
    from infra.index.describe import describe_seal
    from infra.index.parts import read_manifest
    from infra.index.verify import CheckpointFaults
    from schemas.index.manifest import CHECKPOINT_REPAIR, WORK_SKIPPED, manifest_path

    settings = read_settings()
    log = _open_log(settings)
    state = log.refresh()
    status = choose_version(state, version)
    fault = CheckpointFaults(log.store).find([status] if status in state.receiving else []).get(status.version, "")
    data: dict[str, Any] = {
        **asdict(status),
        "served": status is state.current,
        "checkpoint_fault": fault and f"{fault}; {CHECKPOINT_REPAIR}",
    }
    tables: dict[str, list[dict[str, Any]]] = {}
    if status.revision >= 0 and (status.state is not State.REMOVED or log.store.exists(manifest_path(status.version, status.revision))):
        manifest = read_manifest(log.store, status)
        data |= {
            "token": str(status.token),
            "rows": manifest.rows,
            "digest": manifest.digest,
            "data_digest": manifest.data_digest,
            "work_done": {cause: n for cause, n in manifest.work.items() if cause not in WORK_SKIPPED},
            "work_skipped": {cause: n for cause, n in manifest.work.items() if cause in WORK_SKIPPED},
            "lsh_version": manifest.lsh_version,
            "row_bytes": manifest.layout.row_bytes,
            "columns": [f"{c.name}:{c.dtype}[{c.width}]" for c in manifest.layout.columns],
        }
        tables["shards"] = [describe_seal(seal) for seal in manifest.seals]
    print_parts(data, tables | {"removals": _removal_rows(settings, log, state, status.version)}, as_json)


@index_app.command()
def verify(version: OptionalVersion = None, as_json: AsJson = False) -> None:
    """Read every file of a version and compare it with the manifest. Exit code 1 when something is wrong; each fault is named."""
    from infra.index.verify import verify_version
    from infra.progress import open_progress, tell_parts

    log = _open_log()
    with open_progress() as progress:
        tell = tell_parts(progress)
        found = verify_version(log.store, choose_version(log.refresh(), version), lambda done, of: tell("shards read", done, of))
    data = asdict(found)
    faults = data.pop("faults")
    print_data({**data, "faults": list(faults) if as_json else len(faults)}, as_json)
    for fault in () if as_json else faults:
        typer.echo(f"wrong: {fault}")
    if faults:
        raise typer.Exit(1)


@index_app.command(short_help="Show which items differ between two versions, and how.")
def diff(
    a: Annotated[
        str | None,
        typer.Argument(
            help="live, a version (4, 4.1 or a token), a folder of `aif replay --directory`, or another index store (default: the newest version but one)."
        ),
    ] = None,
    b: Annotated[str | None, typer.Argument(help="The same (default: the newest version).")] = None,
    as_json: AsJson = False,
) -> None:
    """Which items differ between two versions, in which columns, and whether data or only floats differ. Exit code 1 if rows or models differ."""
    from infra.index.diff import diff_versions, open_side, readable_versions
    from infra.progress import open_progress, tell_parts

    log = _open_log()
    newest = [str(status.version) for status in readable_versions(log)[-2:]] if a is None or b is None else []
    if a is None and len(newest) < 2:
        raise Incompatible("no_two_versions", "the index has no two versions to compare; publish another checkpoint, or name both sides")
    sides = open_side(a or newest[0], log), open_side(b or newest[-1], log)
    with open_progress() as progress:
        tell = tell_parts(progress)
        found = diff_versions(*sides, lambda done, of: tell("shards compared", done, of))
    digests: list[dict[str, Any]] = [
        {
            "side": s.name,
            "version": f"{s.manifest.version}.{s.manifest.revision}",
            "model": s.manifest.model_id,  # of two models every row differs in "floats"
            "digest": s.manifest.digest,
            "data_digest": s.manifest.data_digest,
        }
        for s in sides
    ]
    data = asdict(found) | {"equal": found.is_equal}
    examples = data.pop("examples")
    print_parts(data, {"sides": digests, "examples": examples}, as_json)
    if not found.is_equal:
        raise typer.Exit(1)


def _removal_rows(settings: "InfraSettings", log: "ControlLog", state: "ControlState", version: int) -> list[dict[str, Any]]:
    from infra.index.removal import describe_removals
    from schemas.index.retention import RetentionRules

    rules = RetentionRules(settings.index.keep_versions, int(settings.index.remove_after_s * 1000))
    return describe_removals(log.store, state, rules, version, SystemClock().now_ms())


# --- deciding --------------------------------------------------------------------------------------------------------


@index_app.command()
def promote(version: Version, reason: Reason = "", force: Force = False, as_json: AsJson = False) -> None:
    """Make a version live, whatever its canary found. A frozen one is revived first: its shards catch up, then it goes live automatically."""
    if not _revive(version, reason, as_json, "promote"):
        _check_lag(version, force)
        _decide("promote", version, reason, as_json)


@index_app.command(short_help="Make the backup version live again, and hold.")
def rollback(version: FormerVersion = None, reason: Reason = "", force: Force = False, as_json: AsJson = False) -> None:
    """Make the backup version live again and hold: nothing is promoted by itself until `release`. A frozen one is revived first.

    A backup that was itself rolled back from has to be named: the same command again would undo the first.
    """
    backup = _backup(_open_log().refresh()) if version is None else version
    if not _revive(backup, reason, as_json, "rollback"):
        _check_lag(backup, force)
        _decide("rollback", backup, reason, as_json)


@index_app.command(short_help="Publish a new revision of a version from its shards.")
def revise(version: OptionalVersion = None, reason: Reason = "", as_json: AsJson = False) -> None:
    """Publish a new revision of a version that is published, live or the backup: its shards write what of it is damaged or gone, from their own data.

    Servers that serve the version continue; those that cannot load it load the new revision.
    """
    status = choose_version(_open_log().refresh(), version)
    if status.wanted_revision is not None:
        raise Incompatible(
            "revision_under_way",
            f"revision {status.version}.{status.wanted_revision} is wanted already; `aif status --watch` shows which shards have sealed it",
        )
    _decide("want", status.version, reason, as_json, revision=status.next_revision, cause=str(Cause.REVISE))


@index_app.command()
def pin(version: Version, reason: Reason = "", force: Force = False, as_json: AsJson = False) -> None:
    """Serve this version whatever is live, until `unpin`."""
    _check_lag(version, force)
    _decide("pin", version, reason, as_json)


@index_app.command()
def unpin(reason: Reason = "", as_json: AsJson = False) -> None:
    """Serve the live version again."""
    _decide("unpin", -1, reason, as_json)


@index_app.command()
def hold(reason: Reason = "", as_json: AsJson = False) -> None:
    """Promote nothing automatically until `release`."""
    _decide("hold", -1, reason, as_json)


@index_app.command()
def release(reason: Reason = "", as_json: AsJson = False) -> None:
    """End a hold."""
    _decide("release", -1, reason, as_json)


@index_app.command(short_help="Overrule the canary of a published version.")
def approve(version: Version, reason: Reason = "", as_json: AsJson = False) -> None:
    """Let a published version be promoted by itself although its canary failed, or before it ran."""
    _decide("approve", version, reason, as_json)


@index_app.command()
def abort(version: Version, reason: Reason = "", as_json: AsJson = False) -> None:
    """Give up a version that is being built."""
    _decide("abort", version, reason, as_json)


@index_app.command()
def drop(version: Version, reason: Reason = "", as_json: AsJson = False) -> None:
    """Remove a frozen version permanently."""
    _decide("drop", version, reason, as_json)


def _backup(state: "ControlState") -> int:
    if state.backup is None:
        frozen = [v for v, s in state.versions.items() if s.state is State.FROZEN]
        ways = [f"go to a frozen version with `aif index rollback {max(frozen)}`"] if frozen else []
        ways += [f"publish a new revision of the live one with `aif index revise {state.live}`"] if state.live is not None else []
        raise Incompatible("no_backup", f"there is no backup version to go back to; {', '.join([*ways, 'or publish another checkpoint'])}")
    status = state.versions[state.backup]
    if status.turned_away:
        raise Incompatible(
            "backup_turned_away",
            f"the backup, version {status.version}, was {status.reason}; name it to go there: rollback {status.version}",
        )
    return status.version


def _revive(version: int, reason: str, as_json: bool, wish: str) -> bool:
    """Ask for the revival of a frozen version and its next step; False if it is not frozen. A wish to roll back holds at once."""
    log = _open_log()
    status = log.refresh().versions.get(version)
    if status is None or status.state is not State.FROZEN:
        return False
    if status.is_reviving:
        raise Incompatible(
            "revision_under_way",
            f"version {version} is being revived already; `aif status --watch` shows which shards have sealed revision {status.wanted_revision}. "
            f"Once it is published, and unless it goes live by itself, `aif index promote {version}` makes it live",
        )
    say(
        f"version {version} is frozen: its shards catch up to revision {status.next_revision}, then it goes live automatically; "
        "a hold, a pin or a rollback before that ends the wish"
    )
    _decide("want", version, reason, as_json, revision=status.next_revision, cause=str(Cause.REVIVE), wish=wish)
    return True


def _check_lag(version: int, force: bool) -> None:
    """Raises Incompatible (`version_behind`) where a version lacks rows that others have, Corrupted (`bad_manifest`) or Unavailable (`missing_file`) where its
    manifest does not read. With `force` both are warnings. An unreachable broker blocks no rollback."""
    from infra.index.delta_tail import describe_lag, fetch_lag
    from infra.index.parts import read_manifest

    settings, log = read_settings(), _open_log()
    status = log.refresh().versions.get(version)
    if status is None or status.revision < 0 or status.state is State.REMOVED:
        return
    try:
        read_manifest(log.store, status)
    except AifError as error:
        if not force:
            raise
        say(f"warning: no server can load version {version}: {error}")
        return
    try:
        behind = describe_lag(fetch_lag(settings.connection(), settings.kafka.topic_prefix, log.store, status))
    except AifError as error:
        say(f"warning: cannot tell whether version {version} has the latest updates: {error}")
        return
    if behind and not force:
        raise Incompatible(
            "version_behind",
            f"version {version} fell behind ({behind}): it would serve older items; publish its checkpoint again, or use --force",
        )
    if behind:
        say(f"warning: version {version} is behind ({behind}) and serves what items were then")


def _decide(kind: str, version: int, reason: str, as_json: bool, **fields: Any) -> None:
    """Append one entry and print the served and the live version."""
    from infra.index.describe import describe_served
    from infra.index.store import fetch_store_time_ms
    from schemas.index.control import Entry

    log = _open_log()
    # The store's time: how long files of a version stay after its end is counted from its entry, and another machine removes them.
    entry = Entry(EntryKind(kind), fetch_store_time_ms(log.store), _BY, version=version, reason=reason, **fields)
    state = log.append(lambda _: entry)
    named = {"version": version} if version >= 0 else {}
    print_data({"entry": f"{state.next_number - 1:09d}", "kind": kind, **named, **describe_served(state)}, as_json)


# --- model -----------------------------------------------------------------------------------------------------------


@model_app.command("show", short_help="Show the contents of a checkpoint and the size of its rows.")
def show_model(
    file: Annotated[
        Path | None, typer.Argument(exists=True, dir_okay=False, help="A checkpoint file (default: the checkpoint of the served version).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Sizes of a checkpoint, bytes of a row, and the compression from raw features to async vectors."""
    from infra.index.parts import read_checkpoint_copy
    from schemas.model.checkpoint import describe_checkpoint

    if file is None:
        log = _open_log()
        source: Path | bytes = read_checkpoint_copy(log.store, choose_version(log.refresh(), None).checkpoint_sha256)
    else:
        source = file
    data = describe_checkpoint(source)
    if as_json:
        print_data(data, True)
        return
    spec = dict(data.pop("spec"))
    schema = spec.pop("schema")
    features = schema.pop("features")
    print_data({**data, "spec": spec, "schema": schema}, False)
    typer.echo("")
    print_table("features", [{"feature": f["name"], **{key: f.get(key, "") for key in _FEATURE_COLUMNS}} for f in features], False)


# --- shared ----------------------------------------------------------------------------------------------------------


def _open_log(settings: "InfraSettings | None" = None) -> "ControlLog":
    from infra.index.control_log import ControlLog
    from infra.index.store import find_index_store

    return ControlLog(find_index_store((settings or read_settings()).index.store))


def choose_version(state: "ControlState", version: int | None) -> "VersionStatus":
    """The version that was named, else the served one. Raises Incompatible (`unknown_version`)."""
    found = state.current if version is None else state.versions.get(version)
    if found is None:
        if version is None:
            raise Incompatible("unknown_version", "no version is served yet; `aif index list` shows what there is, and each can be named")
        raise Incompatible("unknown_version", f"the index has no version {version}; `aif index list` shows those that it has")
    return found
