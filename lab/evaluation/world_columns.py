"""A world as training reads it, joined from its columns: histories of 10^5 behaviours make no event for each.

Here: the same `TrainingSet` as `join_events` makes of the world's events (a test compares them). Not here: the world (infra/data), the join's rules.
"""

import dataclasses

import numpy as np
import torch

from lab.catalogues.world_catalogue import FIRST_ITEM_ID, KINDS, WorldCatalogue
from schemas.features import Scope, encode_features
from schemas.model.behaviour_codes import encode_item_buckets, encode_kind
from schemas.model.inputs import FeatureTensors, map_tensors
from schemas.model.ranker.spec import encode_items
from schemas.model.spec import ModelSpec
from streams.training.histories import Histories, fold_users
from streams.training.impressions import TrainingSet, join_table
from streams.training.item_table import ItemTable, build_item_table


def join_world(catalogue: WorldCatalogue, spec: ModelSpec, w_hash_KM: np.ndarray | None) -> TrainingSet:
    """All impressions of a world, with every item in the table."""
    items = build_item_table(spec, w_hash_KM, catalogue.items(), catalogue.new_items(), None)
    data = join_table(spec, items, fold_users(catalogue.users(), ()), catalogue.impressions())
    histories = _with_behaviours(data.histories, catalogue, items, spec)
    return dataclasses.replace(data, histories=histories, history_end_Q=histories.ends_as_of(data.user_Q, data.time_Q))


def _with_behaviours(histories: Histories, catalogue: WorldCatalogue, items: ItemTable, spec: ModelSpec) -> Histories:
    columns = catalogue.behaviour_columns
    of_users = np.argsort(columns["user"], kind="stable")
    columns = {name: values[of_users] for name, values in columns.items()}
    end_U = np.cumsum(catalogue.world.histories.length_U)
    item_H, ids = columns["item"], list(range(FIRST_ITEM_ID, FIRST_ITEM_ID + catalogue.item_count))
    dwell_X, place_H = np.unique(columns["dwell_s"], return_inverse=True)
    dwells = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.BEHAVIOUR), [{"dwell_s": d} for d in dwell_X.tolist()]))
    kinds = torch.tensor([encode_kind(spec, kind) for kind in KINDS])
    return dataclasses.replace(
        histories,
        begin_U=end_U - catalogue.world.histories.length_U,
        end_U=end_U,
        time_H=columns["time_ms"],
        item_H=items.items_of(ids)[item_H],
        bucket_H=torch.from_numpy(encode_item_buckets(spec, ids)[item_H]),
        token_H=torch.from_numpy(encode_items(spec.ranker, ids)[item_H]) if spec.ranker else histories.token_H,
        kind_H=kinds[torch.from_numpy(columns["bought"].astype(np.int64))],
        features=map_tensors(dwells, lambda t: t[torch.from_numpy(place_H)]),
    )
