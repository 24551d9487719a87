"""A user's history as arrays: the slot of each behaviour's item in a version, and the behaviour's own values.

Here: the join of events with one version's tables, without a Python object per behaviour. Not here: what is read from the rows (history_pass.py), the fold
of histories (schemas/users.py).
A behaviour whose item the version does not have keeps its hashed id, kind and features; its vector, category and signature are zeros (D1).

Arrays: L behaviours, oldest first, F inputs made of a behaviour's own features and of its recency.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from schemas.behaviour_columns import EMPTY, BehaviourColumns
from schemas.features import Scope, encode_features
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.users import BehaviourEvent
from serving.engine.call_one.user_weights import UserWeights
from serving.engine.tables.changes import encode_ids
from serving.engine.tables.tables import Tables


class History(NamedTuple):
    """slots_L int64, -1 = the row is gone; kind_L, bucket_L int64 = rows of the tables of kinds and of hashed item ids; features_LF float32, the
    behaviour's own features and its recency; gate_L float32, what its projection is multiplied by, empty where that is 1."""

    slots_L: np.ndarray
    kind_L: np.ndarray
    bucket_L: np.ndarray
    features_LF: np.ndarray
    gate_L: np.ndarray

    @property
    def missing(self) -> int:
        """How many behaviours have no row."""
        return int((self.slots_L < 0).sum())


def join_history(weights: UserWeights, tables: Tables, events: Sequence[BehaviourEvent]) -> History:
    """Looks the events' items up in this version. `events` must end with the user's newest, or their recency would be another one's. Raises RejectedInput
    (`bad_id`)."""
    spec, length, columns = weights.spec, len(events), _columns_of(events)
    bucket_L = encode_item_buckets(spec, list(columns.item_ids)) if spec.item_id_buckets else np.zeros(length, np.int64)
    names, kinds_L = columns.kinds
    kind_L = np.array([encode_kind(spec, name) for name in names], np.int64)[kinds_L]
    behaviour, features_LF = spec.schema.of(Scope.BEHAVIOUR), np.zeros((length, 0), np.float32)
    if behaviour:
        features_LF = weights.behaviour_features.embed(encode_features(behaviour, columns.features or [{}] * length))
    newest = slice(BEHAVIOURS_PER_USER_MAX - length, None)
    if spec.recency:
        features_LF = np.concatenate([features_LF, weights.recency_LS[newest]], axis=1)
    return History(find_slots(tables, columns), kind_L, bucket_L, features_LF, weights.gate_L[newest])


def find_slots(tables: Tables, events: Sequence[BehaviourEvent]) -> np.ndarray:
    """int64 [L]: only the slots of the events' items."""
    return tables.find(encode_ids(_columns_of(events).item_ids, tables.layout.id_kind)) if len(events) else np.zeros(0, np.int64)


def _columns_of(events: Sequence[BehaviourEvent]) -> BehaviourColumns:
    if isinstance(events, BehaviourColumns):
        return events
    return EMPTY.append([(event.item_id, event.kind, event.time_ms, event.features) for event in events], len(events))
