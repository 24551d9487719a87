"""Items as columns for training: one row per version of an item's features, found by id and time.

Here: events to columns, and "the row as of". Not here: which rows a batch needs (impressions.py).
A row's time is its event version. If publishers use milliseconds as version, training gets the features as of the impression: the latest version not
after it. An item whose first version is later was not known then and is left out: its features may contain what came of the impression.
If the version is a small counter, the latest row is always used; if it is larger than any time in milliseconds, the oldest.

Arrays: R rows, I items, Q realtime features, M multimodal width, W signature bytes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from schemas.events import ItemFeaturesUpdate, NewItem
from schemas.features import encode_features, encode_realtime
from schemas.ids import Id
from schemas.model.inputs import FeatureTensors
from schemas.model.lsh import encode_signatures
from schemas.model.spec import ModelSpec

NOT_AN_ITEM = -1
_TIME_MS_MAX = 10**14  # the year 5138; a larger version is not a time in milliseconds


@dataclass(frozen=True)
class ItemTable:
    """Rows sorted by (item, version). `index` maps an id to its item number; `begin_I`, `end_I` bound its rows.

    multimodal_RM: the embeddings behind the signatures, float32, zeros for a row without one; the exact forms of Eq. 7 are measured on them.
    """

    index: Mapping[Id, int]
    begin_I: np.ndarray
    end_I: np.ndarray
    version_R: np.ndarray
    inputs: FeatureTensors
    realtime_RQ: torch.Tensor
    category_R: torch.Tensor
    bid_R: torch.Tensor
    signatures_RW: torch.Tensor
    has_signature_R: torch.Tensor
    multimodal_RM: np.ndarray

    @cached_property
    def distinct_inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows whose inputs of the item half differ from those of the previous row, the place of each row among these). A version that changes statistics
        alone has the same vector."""
        differs_R = torch.zeros(len(self.version_R), dtype=torch.bool)
        differs_R[:1] = True
        for tensor in (self.inputs.categorical, self.inputs.numeric, self.inputs.bags, self.inputs.embeddings):
            flat = tensor.reshape(len(tensor), -1)
            differs_R[1:] |= (flat[1:] != flat[:-1]).any(dim=1)
        return torch.nonzero(differs_R).flatten(), differs_R.cumsum(0) - 1

    def items_of(self, ids: Sequence[Id]) -> np.ndarray:
        """Item numbers, NOT_AN_ITEM for an unknown id: int64 [len(ids)]."""
        return np.fromiter((self.index.get(item, NOT_AN_ITEM) for item in ids), np.int64, len(ids))

    def rows_as_of(self, items: np.ndarray, time_ms: np.ndarray) -> np.ndarray:
        """The row of each item as of each time (same shape); NOT_AN_ITEM if `items` has that, or if the item was not known yet."""
        known = np.maximum(items, 0)
        low, high = self.begin_I[known], self.end_I[known]
        while (high - low > 1).any():  # bisection of all at once: version[low] <= time, or low is the first
            middle = (low + high) // 2
            not_after = (self.version_R[middle] <= time_ms) & (high - low > 1)
            low, high = np.where(not_after, middle, low), np.where(not_after | (high - low <= 1), high, middle)
        is_later = (self.version_R[low] > time_ms) & (self.version_R[low] <= _TIME_MS_MAX)
        return np.where((items >= 0) & ~is_later, low, NOT_AN_ITEM)


def build_item_table(
    spec: ModelSpec,
    w_hash_KM: np.ndarray | None,
    updates: Iterable[ItemFeaturesUpdate],
    new_items: Iterable[NewItem],
    wanted: Collection[Id] | None,
) -> ItemTable:
    """Columns of the items in `wanted` (None: all). Deletes are ignored: an impression of a deleted item is still worth learning from."""
    embeddings = _latest_embeddings(spec, new_items, wanted)
    kept = _over_records([u for u in updates if u.op != "delete" and (wanted is None or u.item_id in wanted)])
    index = {item: number for number, item in enumerate(dict.fromkeys(u.item_id for u in kept))}
    item_R = np.fromiter((index[u.item_id] for u in kept), np.int64, len(kept))
    version_R = np.fromiter((u.version for u in kept), np.int64, len(kept))
    order = np.lexsort((version_R, item_R))  # stable: of equal versions the one last in the log comes last
    rows = [kept[r] for r in order.tolist()]
    raw = [_with_embedding(spec, u, embeddings) for u in rows]
    count_I = np.bincount(item_R, minlength=len(index))
    signatures_RW, has_R = _signatures(spec, w_hash_KM, rows, embeddings)
    nothing_M = np.zeros(spec.schema.mm_width)
    return ItemTable(
        index=index,
        begin_I=np.cumsum(count_I) - count_I,
        end_I=np.cumsum(count_I),
        version_R=version_R[order],
        inputs=FeatureTensors.from_block(encode_features(spec.schema.item_half_inputs, raw)),
        realtime_RQ=torch.tensor([encode_realtime(spec.schema, r) for r in raw]).reshape(len(raw), len(spec.schema.realtime_features)),
        category_R=torch.tensor([spec.schema.category_of(r) for r in raw], dtype=torch.int64),
        bid_R=torch.tensor([spec.schema.bid_of(r) for r in raw], dtype=torch.float32),
        signatures_RW=torch.from_numpy(signatures_RW),
        has_signature_R=torch.from_numpy(has_R),
        multimodal_RM=np.array([embeddings.get(u.item_id, nothing_M) for u in rows], np.float32).reshape(len(rows), len(nothing_M)),
    )


def _over_records(updates: list[ItemFeaturesUpdate]) -> list[ItemFeaturesUpdate]:
    """Statistics as rows of the item's record with them, and later records with them too; an item that has no record yet has none."""
    if all(u.op == "upsert" for u in updates):
        return updates
    records, statistics, found = dict[Id, Mapping[str, Any]](), dict[Id, Mapping[str, Any]](), list[ItemFeaturesUpdate]()
    for u in sorted(updates, key=attrgetter("version")):
        if u.op == "upsert":
            records[u.item_id] = u.features
        elif u.item_id in records:
            statistics[u.item_id] = {**statistics.get(u.item_id, {}), **u.features}
        else:
            continue
        features = {**records[u.item_id], **statistics.get(u.item_id, {})}
        found.append(u.model_copy(update={"op": "upsert", "features": features}))
    return found


def _latest_embeddings(spec: ModelSpec, new_items: Iterable[NewItem], wanted: Collection[Id] | None) -> dict[Id, np.ndarray]:
    """The last embedding of each item in the log, [M] float32; one of another width is none. As in the rows of an index (streams/encoder.py)."""
    last = {n.item_id: n.embedding for n in new_items if wanted is None or n.item_id in wanted}
    found = {item: embedding for item, embedding in last.items() if len(embedding) == spec.schema.mm_width}
    return dict(zip(found, np.array(list(found.values()), np.float32), strict=True))


def _with_embedding(spec: ModelSpec, update: ItemFeaturesUpdate, embeddings: Mapping[Id, np.ndarray]) -> Mapping[str, Any]:
    """The features of a row. One of the embedding's name never stands in for it."""
    name = spec.schema.multimodal
    return update.features if name is None else {**update.features, name: embeddings.get(update.item_id)}


def _signatures(
    spec: ModelSpec, w_hash_KM: np.ndarray | None, rows: Sequence[ItemFeaturesUpdate], embeddings: Mapping[Id, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Packed signatures [R, W] and whether a row has one [R]."""
    has_R = np.array([u.item_id in embeddings for u in rows], bool)
    signatures_RW = np.zeros((len(rows), spec.signature_bytes), np.uint8)
    if w_hash_KM is not None and has_R.any():
        mm_RM = np.array([embeddings[u.item_id] for u in rows if u.item_id in embeddings])
        signatures_RW[has_R] = encode_signatures(mm_RM, w_hash_KM)
    return signatures_RW, has_R & bool(spec.signature_bytes)
