"""Users as columns for training: profiles, and the behaviours of all users; those of one user lie together, in log order.

Here: events to columns through the one fold of schemas/users.py, and "the history as of". Not here: impressions (impressions.py).

Arrays: U users, H behaviours of all users, L behaviours of a batch's longest history.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from schemas.events import Behaviour, UserFeaturesRecord
from schemas.features import Scope, encode_features
from schemas.ids import Id
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.model.inputs import FeatureTensors
from schemas.model.ranker.spec import encode_items
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent, UserHistory, fold_behaviours, fold_profile
from streams.training.item_table import ItemTable


@dataclass(frozen=True)
class Histories:
    """`index` maps a user to their number; `begin_U`, `end_U` bound their behaviours. Of these, item_H are item numbers, -1 = not in the catalogue. The
    columns bucket_H are rows of AIF's item table, token_H of the ranker's, empty without a ranker. The last of `profiles` is that of a user of whom nothing
    is known."""

    index: Mapping[Id, int]
    profiles: FeatureTensors
    profile_time_U: np.ndarray
    begin_U: np.ndarray
    end_U: np.ndarray
    time_H: np.ndarray
    item_H: np.ndarray
    bucket_H: torch.Tensor
    kind_H: torch.Tensor
    token_H: torch.Tensor
    features: FeatureTensors

    def ends_as_of(self, users: np.ndarray, time_ms: np.ndarray) -> np.ndarray:
        """For each (user, time), the end of the user's behaviours strictly before that time, which were known when the request came."""
        spans = zip(self.begin_U[users].tolist(), self.end_U[users].tolist(), time_ms.tolist(), strict=True)
        return np.array([begin + np.searchsorted(self.time_H[begin:end], at) for begin, end, at in spans], np.int64)

    def profiles_as_of(self, users: np.ndarray, time_ms: np.ndarray) -> np.ndarray:
        """For each (user, time), the place of the user's profile, or of the empty one before the profile held."""
        return np.where(self.profile_time_U[users] <= time_ms, users, len(self.profile_time_U))


_NOTHING = BehaviourEvent("", "", 0)


def fold_users(users: Iterable[UserFeaturesRecord], behaviours: Iterable[Behaviour]) -> dict[Id, UserHistory]:
    """Histories of all users, folded as in serving. The place in the iteration replaces the offset; all behaviours of a user count as one record."""
    found: dict[Id, UserHistory] = {}
    for offset, profile in enumerate(users):
        if profile.op == "upsert":  # training counts statistics itself (user_statistics.py)
            fold_profile(found.setdefault(profile.user_id, UserHistory()), offset, profile.features, profile.time_ms)
    events: dict[Id, list[BehaviourEvent]] = {}
    for b in behaviours:
        events.setdefault(b.user_id, []).append(BehaviourEvent(b.item_id, b.kind, b.time_ms, b.features))
    for user, of_user in events.items():
        fold_behaviours(found.setdefault(user, UserHistory()), 0, of_user)
    return found


def build_histories(spec: ModelSpec, items: ItemTable, found: Mapping[Id, UserHistory]) -> Histories:
    """Columns of the folded histories. A late event keeps its place in the log; the times of a user are made non-decreasing for the search."""
    events = [e for history in found.values() for e in history.behaviours] or [_NOTHING]  # so that a masked place has a row to point to
    count_U = np.fromiter((len(h.behaviours) for h in found.values()), np.int64, len(found))
    end_U = np.cumsum(count_U)
    time_H = np.fromiter((e.time_ms for e in events), np.int64, len(events))
    for begin, end in zip((end_U - count_U).tolist(), end_U.tolist(), strict=True):
        np.maximum.accumulate(time_H[begin:end], out=time_H[begin:end])
    profiles = encode_features(spec.schema.of(Scope.USER), [*(h.profile for h in found.values()), {}])
    return Histories(
        index={user: number for number, user in enumerate(found)},
        profiles=FeatureTensors.from_block(profiles),
        profile_time_U=np.fromiter((h.profile_time_ms for h in found.values()), np.int64, len(found)),
        begin_U=end_U - count_U,
        end_U=end_U,
        time_H=time_H,
        item_H=items.items_of([e.item_id for e in events]),
        bucket_H=torch.from_numpy(encode_item_buckets(spec, [e.item_id for e in events])),
        kind_H=torch.tensor([encode_kind(spec, e.kind) for e in events], dtype=torch.int64),
        token_H=torch.from_numpy(encode_items(spec.ranker, [e.item_id for e in events]) if spec.ranker else np.zeros(0, np.int64)),
        features=FeatureTensors.from_block(encode_features(spec.schema.of(Scope.BEHAVIOUR), [e.features for e in events])),
    )
