"""One ranking as a person reads it: the user's recent items, the best ten, the ranker's order of them, and what a price change and a new item change."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from infra.kafka.publisher import Publisher
from lab.catalogues.catalogue import Catalogue, HeldOutUser
from lab.plain_client import PlainClient, Ranked, wire_ids
from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.ids import Id, encode_wire_id
from schemas.kinds import NUMERIC

TOP = 10
_RECENT = 5
_RANKED_MAX = 1_000  # so far down a changed rank is named
_DEARER, _LOWER_BID = 1.5, 0.8  # what a price change multiplies
_VISIBLE_S_MAX = 30.0
_SETTLE_S = 0.3  # a new item is scored as soon as its features are there; its embedding may come a moment later


@dataclass(frozen=True)
class Line:
    """One ranked item. `rank_before` is None for an item that was not ranked before."""

    rank: int
    item_id: Id
    score: float
    title: str
    rank_before: int | None


@dataclass(frozen=True)
class Change:
    """An event that was published, and the milliseconds until an answer showed it; None if the score stayed the same."""

    what: str
    before: str
    after: str
    visible_ms: float | None


@dataclass(frozen=True)
class OneRanking:
    """The user, the recent items oldest first as (kind, title), the best items before and after the changes, and the changes. `final`: the best items in the
    ranker's order, and the rung that answered."""

    user_id: Id
    recent: tuple[tuple[str, str], ...]
    candidates: int
    took_ms: float
    best: tuple[Line, ...]
    final: tuple[Line, ...]
    final_rung: str
    changes: tuple[Change, ...]
    best_after: tuple[Line, ...]


def show_one_ranking(server: PlainClient, publisher: Publisher, catalogue: Catalogue, user: HeldOutUser) -> OneRanking:
    """Ranks for a user, makes the best item dearer, brings a new item made like it, and ranks again."""
    user_id, candidates = encode_wire_id(user.user_id), wire_ids(user.candidates)

    def rank(*more: Id) -> Ranked:
        items = [*candidates, *more]
        return server.prerank({"user_id": user_id, "item_ids": items, "top_k": min(_RANKED_MAX, len(items)), "deadline_ms": 30_000})

    def spell(item: Id, *more: Id) -> str:
        place, score = _ranks(rank(*more)).get(item), server.score(user_id, item)
        return f"{f'beyond rank {_RANKED_MAX:,}' if place is None else f'rank {place}'}, score {score:.3f}"

    answer, final = rank(), server.rank_in_two_stages(user_id, candidates)
    before, best, recent = _ranks(answer), answer.ids[0], user.behaviours[-_RECENT:]
    features, versions = _find_items(catalogue, {*answer.ids[: TOP + 1], *final.ids, *(encode_wire_id(b.item_id) for b in recent)})
    titles = {item: catalogue.title(values) for item, values in features.items()}
    changes, arrivals, old = list[Change](), list[Id](), features[best]
    if (changed := _make_dearer(catalogue, old)) is not None:
        was = f"rank 1, score {server.score(user_id, best):.3f}"
        price_change = partial(publisher.publish_item, _native(user, best), versions[best] + 1, changed)
        visible_ms = server.time_change(user_id, best, price_change, _VISIBLE_S_MAX)
        numbers = ", ".join(f"{name} {old[name]:g} -> {value:g}" for name, value in changed.items() if value != old[name])
        changes.append(Change(f"price change of item {best}: {numbers}", was, spell(best), visible_ms))
    if (arrival := next(catalogue.arrivals(1, seed=2), None)) is not None:
        new, vector = encode_wire_id(arrival[0].item_id), _find_embedding(catalogue, arrival[1], best)
        publish = partial(publish_arrival, publisher, arrival[0].model_copy(update={"features": old}), vector)
        visible_ms = server.time_change(user_id, new, publish, _VISIBLE_S_MAX)
        time.sleep(_SETTLE_S)
        arrivals, titles[new] = [new], titles[best]
        changes.append(Change(f"new item {new}, with the original features of item {best}", "unknown", spell(new, new), visible_ms))
    last = rank(*arrivals)
    later = titles | ({} if changed is None else {best: catalogue.title(changed)})
    later |= {item: catalogue.title(values) for item, values in _find_items(catalogue, set(last.ids[:TOP]) - later.keys())[0].items()}
    return OneRanking(
        user.user_id,
        tuple((b.kind, later.get(encode_wire_id(b.item_id), str(b.item_id))) for b in recent),
        len(user.candidates),
        answer.took_ms,
        _best(answer, titles, before),
        _best(final, titles, before),
        final.answer["final"]["rung"],
        tuple(changes),
        _best(last, later, before),
    )


def _ranks(answer: Ranked) -> dict[Id, int]:
    return {item: rank for rank, item in enumerate(answer.ids, 1)}


def _best(answer: Ranked, titles: Mapping[Id, str], before: Mapping[Id, int]) -> tuple[Line, ...]:
    items = answer.answer["items"][:TOP]
    return tuple(Line(rank, i["item_id"], i["score"], titles[i["item_id"]], before.get(i["item_id"])) for rank, i in enumerate(items, 1))


def _find_items(catalogue: Catalogue, wanted: Collection[Id]) -> tuple[dict[Id, dict[str, Any]], dict[Id, int]]:
    """The newest features of some items of the catalogue, and their versions, by id as JSON has it. Reads the whole catalogue."""
    features: dict[Id, dict[str, Any]] = {}
    versions: dict[Id, int] = {}
    for update in catalogue.items() if wanted else ():
        if (item := encode_wire_id(update.item_id)) in wanted:
            features[item], versions[item] = dict(update.features), update.version
    return features, versions


def _native(user: HeldOutUser, item: Id) -> Id:
    """The id as events have it; JSON's is the same, or text where it is a large number."""
    return next(own for own in user.candidates.tolist() if encode_wire_id(own) == item)


def _make_dearer(catalogue: Catalogue, features: Mapping[str, Any]) -> dict[str, Any] | None:
    """The features with a higher price and a lower bid, or else with another number that the head reads raw. None if the item has no such number."""
    # `aif statistics` overlays the numbers that are statistics.
    numbers = [f.name for f in catalogue.schema.realtime_features if f.kind is NUMERIC and f.statistic is None]
    first = sorted(numbers, key=lambda name: name != "price")[:1]
    factors = dict.fromkeys(first, _DEARER) | ({bid: _LOWER_BID} if (bid := catalogue.schema.bid) else {})
    moved = {name: round(value * by, 4) for name, by in factors.items() if isinstance(value := features.get(name), int | float) and value}
    return {**features, **moved} if moved else None


def _find_embedding(catalogue: Catalogue, of_arrival: NewItem | None, like: Id) -> Sequence[float] | None:
    """The embedding of the item `like`, or else that of the arrival; None where the catalogue has no embeddings."""
    if of_arrival is None:
        return None
    return next((new.embedding for new in catalogue.new_items() if encode_wire_id(new.item_id) == like), of_arrival.embedding)


def publish_arrival(publisher: Publisher, features: ItemFeaturesUpdate, embedding: Sequence[float] | None) -> None:
    """Publish a new item: its features, and its embedding if it has one."""
    if embedding is None:
        publisher.publish_update(features)
    else:
        publisher.publish_new_item(features.item_id, embedding, features.features, features.version)
