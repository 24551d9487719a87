"""`aif eval data --live`: the model served while a log goes on, with statistics of items that are stale, kept by the agents, or imported again.

    stale   the catalogue as of the mapping's `from`, with which the model was trained, in a running index
    kept    behaviours and impressions of the next hours were published, and `aif statistics` has counted them
    fresh   another index, into which the catalogue as of the end of those hours was imported

Each time the server ranks the same candidates for the same held-out users, and the items that they were shown after those hours. Users come with each
request, as of the end of the hours, and vectors are those of the first import, so only the statistics differ.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from infra.data.mapping import DataMapping
from lab.catalogues.catalogue import Evaluation, HeldOutUser
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from lab.evaluation.candidates import Candidates, collect_candidates
from lab.plain_client import PlainClient, wire_ids
from lab.system.freshness import not_servable
from lab.system.stage import BenchStage, open_bench_stage, tell
from lab.system.statistics import as_of, wait_quiet
from schemas.events import ItemFeaturesUpdate
from schemas.ids import Id, encode_wire_id
from schemas.model.checkpoint import write_checkpoint
from schemas.model.network import AifNetwork
from schemas.statistics import HOUR_MS

USERS_MAX = 400
_SHOWN_MAX = 3_000
_BEHAVIOURS_MAX = 1_000
_DEADLINE_MS = 30_000
STALE, KEPT, FRESH = "served_stale", "served", "served_fresh"


@dataclass(frozen=True)
class Shown:
    """The items shown to one user in one context, and whether each was clicked."""

    user: int
    context: dict[str, Any]
    items: list[Any]
    clicked: list[bool]


@dataclass(frozen=True)
class Answers:
    """Scores of one arm: of the candidates [U, C], and of everything that was shown [X]. An item that the index has not comes last."""

    candidates_UC: np.ndarray
    shown_X: np.ndarray


@dataclass(frozen=True)
class Questions:
    """The questions for the server."""

    evaluation: Evaluation
    candidates: Candidates
    shown: Sequence[Shown]

    def ask(self, server: PlainClient) -> Answers:
        """Asks everything, one request at a time."""
        candidates_UC = np.full(self.candidates.ids_UC.shape, -1.0)
        for number, user in enumerate(self.evaluation.users):
            candidates_UC[number, : len(user.candidates)] = _scores(server, user, wire_ids(user.candidates), {})
        users = self.evaluation.users
        of_shown = [_scores(server, users[s.user], s.items, s.context) for s in self.shown]
        return Answers(candidates_UC, np.array([score for scores in of_shown for score in scores]))


def _scores(server: PlainClient, user: HeldOutUser, items: list[Any], context: dict[str, Any]) -> list[float]:
    behaviours = [b.model_dump(mode="json", exclude={"user_id"}) for b in user.behaviours[-_BEHAVIOURS_MAX:]]
    body = {"user_id": encode_wire_id(user.user_id), "features": user.features, "behaviours": behaviours, "context": context}
    answer = server.prerank({**body, "item_ids": items, "top_k": len(items), "deadline_ms": _DEADLINE_MS}).answer
    found = {item["item_id"]: item["score"] for item in answer["items"]}
    return [found.get(item, -1.0) for item in items]


def make_questions(after: MeasuredCatalogue) -> Questions:
    """Held-out users of the period after the hours, and the items that they were shown in it."""
    evaluation = after.evaluation()
    number_of = {user.user_id: number for number, user in enumerate(evaluation.users)}
    shown: dict[tuple[int, str], Shown] = {}
    for record in after.shown_later():
        if (user := number_of.get(record.user_id)) is not None:
            one = shown.setdefault((user, repr(record.context)), Shown(user, dict(record.context), [], []))
            one.items.extend(encode_wire_id(item.item_id) for item in record.items)
            one.clicked.extend(item.clicked for item in record.items)
    return Questions(evaluation, collect_candidates(evaluation), list(shown.values())[:_SHOWN_MAX])


def serve_live(mapping: DataMapping, directory: Path, network: AifNetwork, hours: float) -> tuple[Questions, dict[str, Answers]]:
    """The answers of each arm, by its name."""
    mapping = mapping.model_copy(update={"holdout": mapping.holdout.model_copy(update={"users_max": USERS_MAX})})
    before = MeasuredCatalogue(mapping, directory)
    cut_ms = before.sources.now_ms
    end = dt.datetime.fromtimestamp((cut_ms + hours * HOUR_MS) / 1_000, dt.UTC).isoformat(timespec="milliseconds")
    after = MeasuredCatalogue(mapping.model_copy(update={"holdout": mapping.holdout.model_copy(update={"start": end})}), directory)
    questions, answers = make_questions(after), dict[str, Answers]()
    items, renewed = _newest(before), _newest(after)
    with open_bench_stage(before.sources.id_kind) as stage, closing(_start(stage, before, items.values(), network)) as server:
        answers[STALE] = questions.ask(server)
        began = tell(f"the log of {hours:g} hours")
        with stage.publisher() as publisher:
            publisher.publish_items(item for key, item in renewed.items() if key not in items)
            publisher.publish_behaviours(after.behaviours())
            if mapping.impressions is not None:
                publisher.publish_impressions(after.impressions())
        stage.serve("statistics", "statistics")
        stage.wait_for(lambda: as_of(stage) > 0, "the statistics to be counted")
        wait_quiet(stage)
        not_servable(stage, server)
        tell("counted and served", began)
        answers[KEPT] = questions.ask(server)
    names = before.schema.statistics.keys()
    fresh = (_with_statistics(items.get(key), item, names) for key, item in renewed.items())
    with open_bench_stage(before.sources.id_kind) as stage, closing(_start(stage, before, fresh, network)) as server:
        answers[FRESH] = questions.ask(server)
    return questions, answers


def _newest(catalogue: MeasuredCatalogue) -> dict[Id, ItemFeaturesUpdate]:
    """The last update of each item."""
    return {item.item_id: item for item in catalogue.items()}


def _with_statistics(before: ItemFeaturesUpdate | None, after: ItemFeaturesUpdate, names: Iterable[str]) -> ItemFeaturesUpdate:
    """An item as of the first import with the statistics of the second."""
    if before is None:
        return after
    features = {name: value for name, value in before.features.items() if name not in names}
    features |= {name: after.features[name] for name in names if name in after.features}
    return after.model_copy(update={"features": features})


def _start(stage: BenchStage, catalogue: MeasuredCatalogue, items: Iterable[ItemFeaturesUpdate], network: AifNetwork) -> PlainClient:
    """A server of the model over these items."""
    began = tell("import, build, load")
    with stage.publisher() as publisher:
        publisher.publish_items(items)
        publisher.publish_new_items(catalogue.new_items())
    path = stage.checkpoint_directory / "model.safetensors"
    path.parent.mkdir(parents=True)
    write_checkpoint(path, network, "model", {})
    worker = stage.start_worker()
    stage.wait_live(stage.publish_checkpoint(path), worker)
    server = stage.start_server()
    not_servable(stage, server)
    tell("serving", began)
    return server
