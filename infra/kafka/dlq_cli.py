"""`aif dlq list|show|redrive`: rejected records, their reasons, and sending them again."""

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from infra.clock import SystemClock
from infra.command import AsJson, print_data, print_table, read_settings, say
from schemas.errors import Incompatible
from schemas.ids import IdKind
from schemas.topics import DEAD_LETTER_PREFIX, TOPICS

if TYPE_CHECKING:
    from infra.kafka.redrive import DeadLetter, Filter
    from infra.settings import InfraSettings

_SHOWN_BYTES = 2_000
_OWNERS = {
    "item-features": "item_id",
    "new-items": "item_id",
    "user-features": "user_id",
    "user-behaviours": "user_id",
    "impressions": "user_id",
}

Topic = Annotated[str, typer.Argument(help="The input topic that rejected them, for example item-features.")]
Disposition = Annotated[
    Literal["malformed", "schema", "semantic", "poison", "exhausted"] | None, typer.Option(help="Only those of this disposition.")
]
Code = Annotated[str | None, typer.Option(help="Only with this error code, for example wrong_partition.")]
Partition = Annotated[int | None, typer.Option(min=0, help="Only from this partition of the input topic.")]
SinceS = Annotated[float | None, typer.Option(min=0.0, max=1e10, help="Only those rejected in the last SECONDS.")]
Contains = Annotated[str | None, typer.Option(help="Only with this text in the reason or in the record.")]


def register(app: typer.Typer) -> None:
    """Register the group `aif dlq`."""
    group = typer.Typer(help="Show rejected records and their reasons; send them again.", no_args_is_help=True)
    app.add_typer(group, name="dlq")
    group.command("list", short_help="Counts by topic and reason, or the newest letters.")(list_letters)
    group.command("show")(show_letter)
    group.command("redrive", short_help="Send rejected updates again, with an audit.")(redrive)


def list_letters(
    topic: Annotated[str | None, typer.Argument(help="One input topic, for example item-features; without it all are counted.")] = None,
    disposition: Disposition = None,
    code: Code = None,
    partition: Partition = None,
    since_s: SinceS = None,
    contains: Contains = None,
    left: Annotated[bool, typer.Option("--left", help="Only those that no redrive has sent.")] = False,
    count: Annotated[int, typer.Option(min=1, help="How many of the newest to list.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Counts by topic and reason; with a topic its newest dead letters, one for each rejected update. Options choose which count.

    `redriven`: sent again. One that was rejected again is a letter of its own, with the next `attempt`.
    """
    from infra.kafka.redrive import read_dead_letters

    settings = read_settings()
    where = settings.connection(), settings.kafka.topic_prefix
    chosen = _filter(disposition, code, partition, since_s, contains)
    topics, sent = _topics() if topic is None else [_known(topic)], _redriven(settings)
    _warn_of_removed(settings, topics)
    letters = (letter for name in topics for letter in read_dead_letters(*where, name) if chosen.takes(letter))
    rows = (_row(letter, sent) for letter in letters if not (left and letter.identity in sent))
    if topic is None:
        print_table("counts" if as_json else "dead_letters", _count(rows), as_json)
    else:
        print_table("dead_letters", deque(rows, maxlen=count), as_json)


def show_letter(
    topic: Topic,
    partition: Annotated[int, typer.Argument(help="Partition of the rejected record.")],
    offset: Annotated[int, typer.Argument(help="Its offset.")],
    index: Annotated[int, typer.Argument(help="Place of the update in the record.")] = 0,
    as_json: AsJson = False,
) -> None:
    """One dead letter: the reason, the headers, the record."""
    from infra.kafka.redrive import read_dead_letters

    settings, place = read_settings(), f"{topic}/{partition}/{offset}/{index}"
    letters = read_dead_letters(settings.connection(), settings.kafka.topic_prefix, _known(topic))
    newest = deque((letter for letter in letters if letter.place == place), maxlen=1)  # of several where the topic was made again
    if not newest:
        raise Incompatible(
            "no_such_dead_letter", f"{place} is not in dlq.{topic}; `aif dlq list {topic}` lists the letters that retention has not removed"
        )
    found = newest[0]
    value = found.record.value
    record = {
        "key": None if found.record.key is None else found.record.key.decode(errors="replace"),
        "value": None if value is None else value[:_SHOWN_BYTES].decode(errors="replace"),
        "value_bytes": None if value is None else len(value),
        "headers": {name: None if raw is None else raw.decode(errors="replace") for name, raw in found.record.headers},
    }
    print_data({**_row(found, _redriven(settings)), **record}, as_json)


def redrive(
    topic: Topic,
    disposition: Disposition = None,
    code: Code = None,
    partition: Partition = None,
    since_s: SinceS = None,
    contains: Contains = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Updates per second.")] = 100.0,
    maximum: Annotated[int, typer.Option("--max", min=1, max=100_000, help="Send at most this many.")] = 1_000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing: show what would be sent.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Continue a redrive that died, after reading which updates it had sent.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Send rejected updates again, each alone and to the partition of its id. None is sent twice: the index store keeps the audit.

    A record that does not parse is sent unchanged. If the record itself is wrong, correct it at the publisher.
    A truncated letter (header aif.truncated in `aif dlq show`) is left out: its publisher has to send the update again, in smaller records.
    """
    from infra.index.control_log import ControlLog
    from infra.index.store import find_index_store
    from infra.kafka.admin import end_offsets
    from infra.kafka.redrive import encode_redriven, plan_redrive, read_dead_letters, read_sent, run_redrive

    settings, chosen = read_settings(), _filter(disposition, code, partition, since_s, contains)
    bootstrap, prefix, store = settings.connection(), settings.kafka.topic_prefix, find_index_store(settings.index.store)
    sent = read_sent(store, bootstrap, prefix, _known(topic), take_over)
    _warn_of_removed(settings, [topic])
    letters = plan_redrive(read_dead_letters(bootstrap, prefix, topic), topic, chosen, sent.identities, maximum)
    if not letters:
        say(
            f"nothing to send: the options choose no whole letter of dlq.{topic} that was not sent before; {len(sent.identities)} were, and none is sent twice"
        )
    if dry_run or not letters:
        if letters or as_json:
            print_table("would_send", [_row(letter, sent.identities) for letter in letters], as_json)
        return
    init = ControlLog(store).refresh().init  # its partitions decide where an id belongs, also if an operator has added some
    table = next(t for t in TOPICS if t.name == topic)
    partitions = table.partition_count(init.shards, init.user_partitions) if init else len(end_offsets(bootstrap, prefix + topic))
    kind = IdKind(settings.index.id_kind)
    records = [encode_redriven(letter, partitions, kind, _OWNERS.get(topic, "")) for letter in letters]
    say(f"sending {len(records)} of dlq.{topic} at {rate:g} a second")
    audit = run_redrive(store, bootstrap, prefix, topic, sent, records, chosen, rate)
    print_data({"sent": len(records), "skipped_sent_before": len(sent.identities), "audit": audit}, as_json)


def _topics() -> list[str]:
    return [t.name.removeprefix(DEAD_LETTER_PREFIX) for t in TOPICS if t.name.startswith(DEAD_LETTER_PREFIX)]


def _known(topic: str) -> str:
    if topic not in _topics():
        raise typer.BadParameter(f"{topic} has no dead-letter topic; those that have one: {', '.join(_topics())}")
    return topic


def _filter(disposition: str | None, code: str | None, partition: int | None, since_s: float | None, contains: str | None) -> "Filter":
    from infra.kafka.redrive import Filter

    since_ms = None if since_s is None else SystemClock().now_ms() - round(since_s * 1_000)
    return Filter(disposition, code, partition, since_ms, contains)


def _redriven(settings: "InfraSettings") -> AbstractSet[str]:
    """The identities that redrives have sent. The updates of a redrive without an end are unknown; a warning says so."""
    from infra.index.store import find_index_store
    from infra.kafka.redrive import read_redriven

    sent, open_runs = read_redriven(find_index_store(settings.index.store))
    if open_runs:
        say(
            f"warning: {', '.join(open_runs)} has no end, so its updates show as not redriven; if it no longer runs, use `aif dlq redrive --take-over`"
        )
    return sent


def _warn_of_removed(settings: "InfraSettings", topics: Iterable[str]) -> None:
    """Names the letters that nothing here counts, shows or sends any more."""
    from infra.kafka.admin import start_offsets

    for topic in topics:
        if removed := sum(start_offsets(settings.connection(), f"{settings.kafka.topic_prefix}{DEAD_LETTER_PREFIX}{topic}").values()):
            say(
                f"warning: retention has removed the oldest {removed} letters of dlq.{topic}; only their publishers can send those updates again"
            )


def _row(letter: "DeadLetter", sent: AbstractSet[str]) -> dict[str, Any]:
    from infra.kafka.dead_letters import attempt_of

    source = letter.source
    return {
        "topic": source.topic,
        "partition": source.partition,
        "offset": source.offset,
        "index": source.index,
        "disposition": source.disposition,
        "code": source.code,
        "attempt": attempt_of(letter.record.headers),
        "redriven": letter.identity in sent,
        "rejected_at_ms": letter.record.timestamp_ms,
        "reason": source.reason,
    }


def _count(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    counts, redriven = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for row in rows:
        group = row["topic"], row["disposition"], row["code"]
        counts[group] += 1
        redriven[group] += row["redriven"]
    return [
        {"topic": t, "disposition": d, "code": c, "updates": n, "redriven": redriven[t, d, c]} for (t, d, c), n in sorted(counts.items())
    ]
