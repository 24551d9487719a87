"""Events after the evaluation time: changed prices, and new items.

Here: events that show freshness. Not here: the files' own versions (infra/data/mapped_catalogue.py). Deterministic by seed; a larger seed gives
later versions. Arrivals are the items that the files date after the evaluation time, then copies of known items with other ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from infra.clock import DAY_MS
from infra.data.mapped_sources import MappedSources
from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.features import Feature, FeatureSchema, Scope, encode_features
from schemas.ids import INT64_MAX, Id
from schemas.kinds import EMBEDDING, NUMERIC

_CHANGES, _ARRIVALS = 20, 21
_DECIMALS = 6
_DRAWS_MAX = 8  # how often to draw again if two items have equal features


def drift_items(
    sources: MappedSources, schema: FeatureSchema, ranks_by_bid: bool, learns_likeness: bool, places: np.ndarray, n: int, seed: int
) -> Iterator[ItemFeaturesUpdate]:
    """n later versions of random items that a model can distinguish from the previous ones.

    Bid and prices move by some percent. Without them all numbers do, and without numbers an item gets the features of another. No version where
    items have no features that differ. Two categories of the same hash bucket are one to a model.
    """
    rng = np.random.default_rng([_CHANGES, seed])
    read = _read(schema, ranks_by_bid, learns_likeness)
    drifting, state = _drifting(schema, read), sources.states.state_at(sources.now_ms)
    told = 0
    for _ in range(_DRAWS_MAX if len(places) else 0):
        chosen, others = rng.choice(places, (2, n))
        features, other = sources.states.features_of(chosen, state), sources.states.features_of(others, state)
        factors = np.exp(rng.choice([-1, 1], n) * (0.1 + np.abs(rng.normal(0, 0.2, n)))).tolist()
        changed = [
            {**raw, **{f.name: _moved(raw.get(f.name), f.default, factor) for f in drifting}} if drifting else another
            for raw, another, factor in zip(features, other, factors, strict=True)
        ]
        for at in np.flatnonzero(_tells(read, features, changed)).tolist():
            version = sources.now_ms + seed * DAY_MS + told + 1
            yield ItemFeaturesUpdate(item_id=sources.item_rows.ids[chosen[at]], version=version, features=changed[at])
            told += 1
            if told == n:
                return


def _tells(read: Sequence[Feature], old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Whether the features differ as a model reads them, bool [len(old)]."""
    blocks = [encode_features(read, records) for records in (old, new)]
    arrays = zip(*([b.categorical_RC, b.numeric_RN, b.bags_RBV, b.embeddings_RE] for b in blocks), strict=True)
    return np.any([(a != b).reshape(len(old), -1).any(axis=1) for a, b in arrays], axis=0)


def _moved(value: object, default: float, factor: float) -> float:
    """Another number: the value, or the default where an item has none, times the factor."""
    old = float(value) if isinstance(value, int | float) else default
    new = round(old * factor, _DECIMALS)
    return new if new != old else old + factor


def _read(schema: FeatureSchema, ranks_by_bid: bool, learns_likeness: bool) -> list[Feature]:
    """The features that a score depends on, without statistics: those of `aif statistics` overlay an item's own. A head that learns by likeness reads only
    realtime features and vectors."""
    features = [f for f in schema.of(Scope.ITEM) if f.statistic is None and (f.name != schema.bid or ranks_by_bid)]
    return [f for f in features if not learns_likeness or f.realtime or f.name == schema.bid or f.kind is EMBEDDING]


def _drifting(schema: FeatureSchema, read: Sequence[Feature]) -> list[Feature]:
    """The numbers that drift: among those that a score depends on, prices and the bid, or else the realtime ones, or else all."""
    seen = [f for f in read if f.kind is NUMERIC]
    prices = [f for f in seen if f.name == schema.bid or "price" in f.name.lower()]
    if not seen:
        return []
    chosen = prices or [f for f in seen if f.realtime] or seen
    bid = [f for f in schema.of(Scope.ITEM) if f.name == schema.bid and f.kind is NUMERIC]
    return chosen + [f for f in bid if f not in read]  # the bid goes along with the price


def copy_items(sources: MappedSources, places: np.ndarray, n: int, seed: int) -> Iterator[tuple[ItemFeaturesUpdate, NewItem | None]]:
    """n items that the catalogue does not tell, each with its embedding if it has one."""
    created_I = sources.item_rows.created_I
    dated = np.flatnonzero(created_I > sources.now_ms)
    dated = dated[np.argsort(created_I[dated], kind="stable")][seed * n : (seed + 1) * n]
    for place in dated.tolist():
        version = int(created_I[place])
        known_by = version + sources.history_known_after_ms + DAY_MS
        item = sources.item_rows.ids[place]
        raw = sources.states.features_of(np.array([place]), sources.states.state_at(known_by))[0]
        yield ItemFeaturesUpdate(item_id=item, version=version, features=raw), _embedding(sources, item, item, None)
    rng = np.random.default_rng([_ARRIVALS, seed])
    ids = _free_ids(sources, seed, n - len(dated))
    if not len(places) or not ids:
        return
    chosen = rng.choice(places, len(ids))
    features = sources.states.features_of(chosen, sources.states.state_at(sources.now_ms))
    for k, (new, place, raw) in enumerate(zip(ids, chosen.tolist(), features, strict=True)):
        update = ItemFeaturesUpdate(item_id=new, version=sources.now_ms + k + 1, features=raw)
        yield update, _embedding(sources, new, sources.item_rows.ids[place], rng)


def _embedding(sources: MappedSources, new: Id, like: Id, rng: np.random.Generator | None) -> NewItem | None:
    """An embedding for a new item, near that of the item it is like."""
    if like not in sources.embeddings.place:
        return None
    vector: Any = sources.embeddings.vectors(np.array([sources.embeddings.place[like]]))[0]
    if vector is None:
        return None
    if rng is not None:
        size = float(np.sqrt(np.mean(np.square(vector))))
        vector = np.round(np.asarray(vector) + 0.05 * size * rng.standard_normal(len(vector)), _DECIMALS).tolist()
    return NewItem(item_id=new, embedding=vector)


def _free_ids(sources: MappedSources, seed: int, n: int) -> Sequence[Id]:
    """Ids that no item has, different for each seed."""
    ids = sources.item_rows.ids
    if isinstance(ids[0], str):
        taken = set(ids)
        names = (f"arrival-{seed}-{k}" for k in range(n + len(taken)))
        return [name for name in names if name not in taken][:n]
    numbers = [i for i in ids if isinstance(i, int)]
    room = (seed + 1) * 1_000_000
    first = max(numbers) + 1 + seed * 1_000_000 if max(numbers) + room < INT64_MAX else min(numbers) - room
    return [first + k for k in range(n)]
