"""`aif import DIR --mapping FILE`: publishes what CSV, JSON-lines or Parquet files hold.

Here: options, the order of topics, and the output. Not here: events (mapped_catalogue.py), warnings (doubts.py), sending (infra/kafka/publisher.py).
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.command import AsJson, print_data, read_settings, say

if TYPE_CHECKING:
    from rich.progress import Progress

    from infra.data.mapped_catalogue import MappedCatalogue
    from infra.kafka.publisher import Publisher

_SAMPLES = 3
_REJECTIONS_SHOWN = 20
_KINDS_SHOWN = 10
_EVENT_CHARS_SHOWN = 300
_TOPICS = ("item-features", "new-items", "user-features", "user-behaviours", "impressions")
_ONCE = "begin with new topics (AIF_KAFKA__TOPIC_PREFIX): a behaviour that is sent twice counts twice in its user's history"
Kinds = list[tuple[str, Callable[[], Iterator[Any]]]]


def register(app: typer.Typer) -> None:
    """Adds `aif import`."""
    app.command("import", short_help="Publish a catalogue and behaviours of users from files.")(import_files)


def import_files(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The folder with the CSV, JSON-lines or Parquet files.")],
    mapping: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="The TOML file that maps them (docs/IMPORT.md).")],
    limit: Annotated[int | None, typer.Option(min=1, help="Read at most this many rows of each file section.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Publish nothing: show counts, the schema and samples of each kind.")] = False,
    model_out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the schema and model choices here, as `aif train --model` reads them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish items, embeddings, users, behaviours and impressions from files. Rejected rows are named on standard error; exit code 0."""
    from infra.data.choices import describe_choices
    from infra.data.doubts import find_doubts, require_common_ids
    from infra.data.mapped_catalogue import MappedCatalogue
    from infra.data.mapping import read_mapping
    from infra.files import write_file_durably
    from infra.progress import open_progress, tell_parts

    say(f"reading {directory}")
    with open_progress() as progress:
        catalogue = MappedCatalogue(read_mapping(mapping), directory, limit, tell=tell_parts(progress, "rows of [{}]"))
        require_common_ids(catalogue.sources)
        kinds = _kinds_of(catalogue)
        report = _try_out(kinds, progress) if dry_run else {"counts": _publish(catalogue, kinds, progress)}
        doubts = [*find_doubts(catalogue.sources), *_doubt_requests(catalogue, report["counts"]["impressions"])]
    report |= _describe(catalogue) | {"choices": describe_choices(catalogue), "warnings": doubts}
    if model_out is not None:
        sections = {"schema": catalogue.schema.to_dict(), "model": dict(catalogue.model), "train": catalogue.train.to_dict()}
        write_file_durably(model_out, (json.dumps(sections, indent=1) + "\n").encode())
    _say_rejections(catalogue)
    for doubt in doubts:
        say(f"warning: {doubt}")
    if as_json:
        print_data(report, as_json)
    else:
        _print_report(report)


def _kinds_of(catalogue: "MappedCatalogue") -> Kinds:
    """Each topic and its events; impressions only where there is something to learn from."""
    kinds: Kinds = [
        ("item-features", catalogue.items),
        ("new-items", catalogue.new_items),
        ("user-features", catalogue.users),
        ("user-behaviours", catalogue.behaviours),
    ]
    if len(catalogue.sources.positives):
        return [*kinds, ("impressions", catalogue.impressions)]
    say(f"no impressions: {_why_no_positives(catalogue)}, so this catalogue cannot train a model")
    return kinds


def _why_no_positives(catalogue: "MappedCatalogue") -> str:
    mapping = catalogue.mapping
    if mapping.impressions is not None:
        return f"no row of {mapping.impressions.file} that counts is clicked"
    if mapping.behaviours is not None:
        return f"no row of {mapping.behaviours.file} counts{': [behaviours] where keeps none' if mapping.behaviours.where else ''}"
    return "the mapping has no [impressions] file and no [behaviours] to sample them from"


def _doubt_requests(catalogue: "MappedCatalogue", impressions: int) -> list[str]:
    """Positives of which no request could be made."""
    if impressions or not len(positives := catalogue.sources.positives):
        return []
    needs = "a user with an earlier history; and among the items taken in the pool_days before it, some that the user takes next and some others"
    return [f"no impressions came of {len(positives):,} positives, so this catalogue cannot train a model. A request needs {needs}"]


def _try_out(kinds: Kinds, progress: "Progress") -> dict[str, Any]:
    """Counts and the first events of each kind. Makes all events and sends none."""
    from infra.progress import counted

    counts, samples = dict.fromkeys(_TOPICS, 0), {}
    for topic, events in kinds:
        made = counted(events(), progress, topic)
        samples[topic] = [event.model_dump(mode="json", by_alias=True) for event in itertools.islice(made, _SAMPLES)]
        counts[topic] = len(samples[topic]) + sum(1 for _ in made)
    return {"counts": counts, "samples": samples}


def _publish(catalogue: "MappedCatalogue", kinds: Kinds, progress: "Progress") -> dict[str, int]:
    """Publishes everything, with a progress bar per topic. Returns the number of events by topic."""
    from infra.progress import counted

    counts = dict.fromkeys(_TOPICS, 0)
    with _open_publisher(catalogue) as publisher:
        send: Mapping[str, Callable[[Iterable[Any]], int]] = {
            "item-features": publisher.publish_items,
            "new-items": publisher.publish_new_items,
            "user-features": publisher.publish_users,
            "user-behaviours": publisher.publish_behaviours,
            "impressions": publisher.publish_impressions,
        }
        for topic, events in kinds:
            try:
                counts[topic] = send[topic](counted(events(), progress, topic))
                publisher.flush()
            except KeyboardInterrupt:
                say(_what_is_sent(topic, [name for name, count in counts.items() if count]))
                raise
    return counts


def _what_is_sent(topic: str, whole: Sequence[str]) -> str:
    """What an interrupted import leaves, and whether it can be run again."""
    before = f", after the whole of {', '.join(whole)}" if whole else ""
    told = f"stopped while {topic} was sent{before}; the same command sends all of it again"
    if topic in ("user-behaviours", "impressions"):
        return f"{told}; {_ONCE}"
    return told


def _open_publisher(catalogue: "MappedCatalogue") -> "Publisher":
    from infra.index.control_log import read_state
    from infra.index.store import find_index_store
    from infra.kafka.admin import end_offsets
    from infra.kafka.publisher import open_publisher
    from schemas.errors import Incompatible, Misconfigured
    from schemas.topics import USER_BEHAVIOURS

    settings = read_settings()
    index, kind = settings.index, catalogue.schema.id_kind
    if index.id_kind != kind:
        raise Misconfigured(
            "id_kind_differs",
            f"the files have {kind} ids, the index has {index.id_kind} ids; set AIF_INDEX__ID_KIND={kind} for every process of a new index"
            + (', or id_kind = "text" in the mapping\'s [schema]' if index.id_kind == "text" else ""),
        )
    init = read_state(find_index_store(index.store, look=False)).init
    if init is not None and init.id_kind != kind:
        raise Incompatible(
            "id_kind_differs",
            f"the files have {kind} ids, the index in {index.store} was made for {init.id_kind} ids and would reject each; begin a new one: "
            f"AIF_INDEX__ID_KIND={kind} with an AIF_INDEX__STORE, AIF_WORKER__DATA_DIR, AIF_USERS__DATA_DIR and AIF_KAFKA__TOPIC_PREFIX of its own",
        )
    publisher = open_publisher(settings, "aif-import")
    topic = settings.kafka.topic_prefix + USER_BEHAVIOURS
    if len(catalogue.sources.history) and any(end_offsets(settings.connection(), topic).values()):
        say(f"warning: {topic} holds records already; if these files were imported before, stop this (Ctrl-C) and {_ONCE}")
    return publisher


def _describe(catalogue: "MappedCatalogue") -> dict[str, Any]:
    from infra.data.periods import spell_time

    sources, schema = catalogue.sources, catalogue.schema
    held_back = len(sources.history) - sources.history.before(sources.now_ms)
    return {
        "items": catalogue.item_count,
        "rejected": len(catalogue.rejections),
        "rejected_by_reason": dict(catalogue.rejections.counts.most_common(_KINDS_SHOWN)),
        "rejections": [str(row) for row in catalogue.rejections.named[:_REJECTIONS_SHOWN]],
        "published_until": spell_time(sources.now_ms) if sources.now_ms > 0 else "",  # items without any time
        "behaviours_held_out": held_back,
        "behaviours_of_known_items_share": round(sources.known_share, 4),
        "schema": schema.to_dict() | {"fingerprint": schema.fingerprint},
        "model": dict(catalogue.model),
    }


def _say_rejections(catalogue: "MappedCatalogue") -> None:
    named = catalogue.rejections.named
    for row in named[:_REJECTIONS_SHOWN]:
        say(f"rejected {row}")
    if (more := len(catalogue.rejections) - min(len(named), _REJECTIONS_SHOWN)) > 0:
        say(
            f"and {more:,} more rows; in all {', '.join(f'{what}: {count:,}' for what, count in catalogue.rejections.counts.most_common(_KINDS_SHOWN))}"
        )


def _print_report(report: dict[str, Any]) -> None:
    plain = {k: v for k, v in report.items() if k in ("items", "rejected", "published_until", "behaviours_held_out")}
    print_data({**report["counts"], **plain, "fingerprint": report["schema"]["fingerprint"]}, as_json=False)
    if "samples" not in report:
        return
    print("\nchosen")
    for choice in report["choices"]:
        print("  " + choice)
    print("\nfeatures")
    for feature in report["schema"]["features"]:
        print("  " + ", ".join(f"{name} {_spell(value)}" for name, value in feature.items()))
    for topic, events in report["samples"].items():
        print(f"\n{topic}")
        for event in events:
            print("  " + _shortened(event))


def _spell(value: Any) -> str:
    """A parameter of a feature in words; of a statistic the parts that it has."""
    return " ".join(f"{part} {one}" for part, one in value.items() if one) if isinstance(value, dict) else str(value)


def _shortened(event: dict[str, Any]) -> str:
    """One event on one line, long ones cut."""
    text = json.dumps(event, ensure_ascii=False)
    return text if len(text) <= _EVENT_CHARS_SHOWN else f"{text[:_EVENT_CHARS_SHOWN]}... ({len(text)} characters)"
