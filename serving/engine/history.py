"""A user's history as arrays: where the row of each behaviour's item lies in a version, and what the behaviour itself says.

Here: the join of events with one version's tables, without an object per behaviour. Not here: what is read from the rows (history_pass.py), the fold of
histories (schemas/users.py).
A behaviour whose item is gone from the version keeps its hashed id, kind and features; its vector, category and signature are zeros (D1).

Arrays: L behaviours, oldest first, F inputs made of a behaviour's own features.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from schemas.features import Scope, encode_features
from schemas.ids import Id
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.users import BehaviourEvent
from serving.engine.changes import encode_ids
from serving.engine.tables import Tables
from serving.engine.user_weights import UserWeights


class History(NamedTuple):
    """slots_L int64, -1 = the row is gone; kind_L, bucket_L int64 = rows of the tables of kinds and of hashed item ids; features_LF float32."""

    slots_L: np.ndarray
    kind_L: np.ndarray
    bucket_L: np.ndarray
    features_LF: np.ndarray

    @property
    def missing(self) -> int:
        """How many behaviours have no row."""
        return int((self.slots_L < 0).sum())


def join_history(weights: UserWeights, tables: Tables, events: Sequence[BehaviourEvent]) -> History:
    """The events with their places in this version. Raises RejectedInput (`bad_id`)."""
    spec, length = weights.spec, len(events)
    ids = [event.item_id for event in events]
    slots_L = tables.find(encode_ids(ids, tables.layout.id_kind)) if length else np.zeros(0, np.int64)
    bucket_L = encode_item_buckets(spec, ids) if spec.item_id_buckets else np.zeros(length, np.int64)
    behaviour = spec.schema.of(Scope.BEHAVIOUR)
    features_LF = np.zeros((length, 0), np.float32)
    if behaviour:
        features_LF = weights.behaviour_features.embed(encode_features(behaviour, [event.features for event in events]))
    return History(slots_L, _kinds(weights, events), bucket_L, features_LF)


def find_slots(tables: Tables, events: Sequence[BehaviourEvent]) -> np.ndarray:
    """int64 [L]: the slots alone."""
    ids: list[Id] = [event.item_id for event in events]
    return tables.find(encode_ids(ids, tables.layout.id_kind)) if ids else np.zeros(0, np.int64)


def _kinds(weights: UserWeights, events: Sequence[BehaviourEvent]) -> np.ndarray:
    kinds = [event.kind for event in events]
    codes = {kind: encode_kind(weights.spec, kind) for kind in set(kinds)}
    if len(codes) == 1:
        return np.full(len(kinds), codes[kinds[0]], np.int64)
    return np.fromiter(map(codes.__getitem__, kinds), np.int64, len(kinds))
