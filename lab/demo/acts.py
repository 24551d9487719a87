"""The acts of the demo; each returns its figures. The acts know the stage and the catalogue, not the model.

Relevance is design-independent: the ids that matter are the catalogue's (`Evaluation`), the ranking is the server's answer over HTTP.
"""

import itertools
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from infra.kafka.publisher import Publisher
from infra.processes import Child, wait_until
from lab.background import Background
from lab.catalogues.catalogue import Catalogue, Evaluation, HeldOutUser
from lab.demo.one_ranking import publish_arrival
from lab.demo.progress import Step
from lab.demo.stage import Stage
from lab.plain_client import FIRST, PlainClient, Ranked, wire_ids
from schemas.errors import Unavailable
from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.ids import Id, encode_wire_id
from serving.core.relay_rungs import FinalRung
from streams.training.comparison import MODEL, Gain, compare
from streams.training.measures import UserValues

UPDATES_SHOWN = 50
NEW_ITEMS_SHOWN = 20
CANDIDATES_DURING_SWITCH = 400
BEHAVIOURS_DURING_SWITCH = 200
ANSWERS_DURING_SWITCH_MIN = 1_000
POPULARITY = "popularity"
_PROGRESS = re.compile(r"[\w %().-]+: [\d,]+( of [\d,]+)?")
_NOTE_CHARS_MAX = 36
_TRAINED_S_MAX = 600.0
_VISIBLE_S_MAX = 90.0  # a killed worker is back after its group session has ended


def publish_catalogue(publisher: Publisher, catalogue: Catalogue, step: Step) -> dict[Id, str]:
    """Everything the catalogue has, each kind of event to its topic: items, embeddings, profiles, histories, impressions.

    Returns the category of each item that has one.
    """
    categories: dict[Id, str] = {}
    for title, events, publish in (
        ("items", _note_categories(catalogue, categories), publisher.publish_items),
        ("embeddings", catalogue.new_items(), publisher.publish_new_items),
        ("profiles", catalogue.users(), publisher.publish_users),
        ("behaviours", catalogue.behaviours(), publisher.publish_behaviours),
        ("impressions", catalogue.impressions(), publisher.publish_impressions),
    ):
        step.tell(title)
        publish(_counted(events, step, title))
    publisher.flush()
    return categories


def _note_categories(catalogue: Catalogue, categories: dict[Id, str]) -> Iterator[ItemFeaturesUpdate]:
    name = catalogue.schema.sim_category
    for update in catalogue.items():
        if name is not None and (category := update.features.get(name)) is not None:
            categories[update.item_id] = sys.intern(str(category))
        yield update


def _counted(events: Iterator[Any], step: Step, title: str) -> Iterator[Any]:
    for number, event in enumerate(events, 1):
        yield event
        if number % 1_000 == 0:
            step.tell(f"{number:,} {title}")


def wait_first_checkpoint(stage: Stage, trainer: Child, step: Step) -> Path:
    """The trainer's first checkpoint, as soon as it is there. Raises Unavailable with the trainer's log if it ends without one."""

    def has_one() -> bool:
        step.tell(last_progress(trainer))
        return bool(stage.checkpoints()) or not trainer.alive()

    wait_until(has_one, _TRAINED_S_MAX, f"a checkpoint of the trainer (log {trainer.log_path})")
    if not stage.checkpoints():
        stage.finish(trainer)
    return stage.checkpoints()[0]


def last_progress(child: Child) -> str:
    """The last line of a child's log that reports progress ("answers: 12 of 40"); empty without such a line."""
    lines = (line for line in reversed(child.log_tail().splitlines()) if _PROGRESS.fullmatch(line))
    return next(lines, "")[:_NOTE_CHARS_MAX]


# --- ranking ---------------------------------------------------------------------------------------------------------


@dataclass
class Quality:
    """HR@K or recall@K of the model, of chance, and of each plain score on the same candidates; the latency and the items of each ranking. One value for
    each user."""

    model: list[float] = field(default_factory=list)
    chance: list[float] = field(default_factory=list)
    plain: dict[str, list[float]] = field(default_factory=dict)
    took_ms: list[float] = field(default_factory=list)
    ids: list[list[Id]] = field(default_factory=list)

    def gain(self, measure: str) -> Gain:
        """What the model gains over the plain score that finds most."""
        found = {MODEL: self.model} | self.plain
        (gain,) = compare({name: {measure: UserValues(np.array(values), np.ones(len(values)))} for name, values in found.items()})
        return gain


def plain_scores(catalogue: Catalogue, evaluation: Evaluation, categories: Mapping[Id, str]) -> list[dict[str, np.ndarray]]:
    """The scores that need no learning of each user's candidates [C], by name: those of `aif eval data`, and how often the user met an item of the category.
    Popularity decides among equals."""
    from lab.evaluation.candidates import candidate_scores, collect_candidates

    scores = candidate_scores(catalogue.log, evaluation, collect_candidates(evaluation))
    found = []
    for number, user in enumerate(evaluation.users):
        liked = Counter(categories[b.item_id] for b in user.behaviours if b.item_id in categories)
        own = {"favourite categories": np.array([liked[categories.get(i, "")] for i in user.candidates.tolist()], float)}
        found.append({**{name: score_UC[number, : len(user.candidates)] for name, score_UC in scores.items()}, **own})
    return found


def show_ranking(server: PlainClient, evaluation: Evaluation, plain: Sequence[Mapping[str, np.ndarray]], step: Step) -> Quality:
    """Ranks the candidates of every held-out user, who the server knows only from the topics. `plain`: of each user, what `plain_scores` gives."""
    quality = Quality()
    chance = np.random.default_rng(0)
    for user, scores in zip(evaluation.users, plain, strict=True):
        body = {
            "user_id": encode_wire_id(user.user_id),
            "item_ids": wire_ids(user.candidates),
            "top_k": evaluation.k,
            "deadline_ms": 30_000,
        }
        ranked = server.prerank(body)
        quality.took_ms.append(ranked.took_ms)
        quality.ids.append(ranked.ids)
        quality.model.append(_found(ranked.ids, user, evaluation.k))
        for name, score_C in scores.items():
            order_C = np.lexsort((-scores[POPULARITY], -score_C))
            quality.plain.setdefault(name, []).append(_found(wire_ids(user.candidates[order_C[: evaluation.k]]), user, evaluation.k))
        by_chance = chance.permutation(len(user.candidates))[: evaluation.k]
        quality.chance.append(_found(wire_ids(user.candidates[by_chance]), user, evaluation.k))
        step.advance()
    return quality


@dataclass
class TwoOrders:
    """HR@10 of AIF's order and of the final one, one value for each user, and how often each rung answered."""

    aif: list[float] = field(default_factory=list)
    final: list[float] = field(default_factory=list)
    rungs: Counter[str] = field(default_factory=Counter)

    @property
    def resident_share(self) -> float:
        """Share of the final rankings that found their whole prefix computed."""
        return self.rungs[FinalRung.RESIDENT] / self.rungs.total()


def show_two_orders(server: PlainClient, evaluation: Evaluation, aif_ids: Sequence[Sequence[Id]], step: Step) -> TwoOrders:
    """Ranks the candidates of every held-out user in two stages. `aif_ids`: of each user, AIF's answer to the same candidates."""
    orders = TwoOrders()
    for user, ids in zip(evaluation.users, aif_ids, strict=True):
        ranked = server.rank_in_two_stages(encode_wire_id(user.user_id), wire_ids(user.candidates))
        orders.aif.append(_found(ids[:FIRST], user, FIRST))
        orders.final.append(_found(ranked.ids, user, FIRST))
        orders.rungs[ranked.answer["final"]["rung"]] += 1
        step.advance()
    step.result = ", ".join(f"{count} {rung}" for rung, count in orders.rungs.most_common())
    return orders


def _found(ids: Sequence[Id], user: HeldOutUser, k: int) -> float:
    """Share of the relevant items among `ids`: of all of them for hr, of min(k, all) for recall."""
    relevant = {encode_wire_id(i) for i in user.relevant}
    return len(relevant & set(ids)) / min(len(relevant), k)


# --- freshness -------------------------------------------------------------------------------------------------------


def show_updates(server: PlainClient, publisher: Publisher, user_id: Id, changes: Iterator[ItemFeaturesUpdate], step: Step) -> list[float]:
    """Milliseconds from before the produce call to an answer with another score, one item after the other."""
    waited = []
    for change in changes:
        if server.score(user_id, change.item_id) is not None:
            waited.append(_time_visible(server, user_id, change.item_id, partial(publisher.publish_update, change)))
            step.advance()
    return waited


def show_new_items(
    server: PlainClient, publisher: Publisher, user_id: Id, arrivals: Iterator[tuple[ItemFeaturesUpdate, NewItem | None]], step: Step
) -> list[float]:
    """Milliseconds from before the produce call to an answer that scores a new item."""
    waited = []
    for features, new in arrivals:
        embedding = None if new is None else new.embedding
        waited.append(_time_visible(server, user_id, features.item_id, partial(publish_arrival, publisher, features, embedding)))
        step.advance()
    return waited


def _time_visible(server: PlainClient, user_id: Id, item_id: Id, publish: Callable[[], object]) -> float:
    waited_ms = server.time_change(user_id, item_id, publish, _VISIBLE_S_MAX)
    if waited_ms is None:
        raise Unavailable("timed_out", f"item {item_id} kept its score for {_VISIBLE_S_MAX:g} s after its event; look at the worker's log")
    return waited_ms


# --- versions --------------------------------------------------------------------------------------------------------


class Load(Background):
    """Requests without a pause from one thread, every answer kept with its request for the audit."""

    def __init__(self, url: str, evaluation: Evaluation) -> None:
        self._server = PlainClient(url)
        self._bodies = [_inline_body(user) for user in evaluation.users[:50]]
        self.answers: list[tuple[Mapping[str, Any], Ranked]] = []
        super().__init__(self._run)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            super().__exit__(kind)
        finally:
            self._server.close()

    def _run(self) -> None:
        for number in itertools.count():
            if self.stopping.is_set():
                return
            body = {**self._bodies[number % len(self._bodies)], "request_id": f"load-{number}"}
            self.answers.append((body, self._server.prerank(body)))

    def versions(self) -> list[str]:
        """Versions in the order in which answers named them."""
        seen = [ranked.version for _, ranked in self.answers]
        return [v for i, v in enumerate(seen) if i == 0 or v != seen[i - 1]]


def _inline_body(user: HeldOutUser) -> dict[str, Any]:
    """A request that carries its user, so that the audit can recompute it from the request alone."""
    behaviours = [
        {"item_id": encode_wire_id(b.item_id), "kind": b.kind, "time_ms": b.time_ms, "features": dict(b.features)}
        for b in user.behaviours[-BEHAVIOURS_DURING_SWITCH:]
    ]
    return {
        "user_id": encode_wire_id(user.user_id),
        "features": dict(user.features),
        "behaviours": behaviours,
        "item_ids": wire_ids(user.candidates[:CANDIDATES_DURING_SWITCH]),
        "deadline_ms": 30_000,
    }


def show_switches(
    stage: Stage, load: Load, publisher: Publisher, checkpoints: Sequence[Path], changes: Iterator[ItemFeaturesUpdate], step: Step
) -> int:
    """Publishes checkpoint after checkpoint under load, prices changing all the while; returns how many versions went live."""
    with load:
        for checkpoint in checkpoints:
            version = publisher.publish_checkpoint_file(stage.control.store, checkpoint).offset
            for change in itertools.islice(changes, 20):
                publisher.publish_update(change)
            publisher.flush()
            stage.wait_for(partial(_answers_from, load, version), f"answers from version {version}")
            step.tell(f"version {version} answers")
            step.advance()
        stage.wait_for(lambda: load.error is not None or len(load.answers) >= ANSWERS_DURING_SWITCH_MIN, "enough answers under load")
    return len(load.versions()) - 1


def _answers_from(load: Load, version: int) -> bool:
    if load.error is not None:
        raise Unavailable("load_failed", f"a request failed while versions switched: {load.error}")
    return bool(load.answers) and load.answers[-1][1].version == str(version)


def write_answers(path: Path, load: Load) -> None:
    """The load's requests and answers as JSON lines, for `aif verify-answers`."""
    with path.open("w") as file:
        for body, ranked in load.answers:
            file.write(json.dumps({"request": body, "answer": ranked.answer}) + "\n")


def median(values: Sequence[float]) -> float | None:
    """Median, or None where nothing was measured."""
    return statistics.median(values) if values else None
