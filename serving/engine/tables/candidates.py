"""The candidates of a request: ids as they came, without repeats, to rows; and the best k by their scores.

A score that is not a number comes last. It takes no other's place, and an answer that has nothing better shows it (serving/reports.py counts these).

Arrays: C ids as they came, K known candidates, A answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import RejectedInput
from schemas.ids import Id
from schemas.kernels.hash_table import first_of_each, open_table
from schemas.limits import CANDIDATES_MAX, UNKNOWN_ITEMS_NAMED_MAX
from serving.engine.tables.changes import encode_ids
from serving.engine.tables.tables import Tables


@dataclass(frozen=True, slots=True)
class Candidates:
    """row_K int64 and ids of the known candidates; `unknown`: the first unknown ids; `different`: how many different ids were asked for."""

    row_K: np.ndarray
    ids_K: "np.ndarray | list[Id]"
    unknown: list[Id]
    unknown_count: int
    different: int


def count_unsigned(tables: Tables, row_K: np.ndarray) -> int:
    """How many candidates LSH and SimTier know nothing of, in a version whose items have signatures; 0 in one without."""
    return len(row_K) - int(np.count_nonzero(tables.columns["has_signature"][row_K])) if "signature" in tables.columns else 0


def find_candidates(tables: Tables, item_ids: Sequence[Id] | np.ndarray) -> Candidates:
    """Looks the candidates of a request up in one version. Raises RejectedInput (`too_many_candidates`, `bad_id`)."""
    if len(item_ids) > CANDIDATES_MAX:
        raise RejectedInput("too_many_candidates", f"{len(item_ids)} candidates, expected at most {CANDIDATES_MAX}; send fewer")
    ids = encode_ids(item_ids, tables.layout.id_kind)
    if isinstance(ids, np.ndarray):
        ids = ids[_first_places(ids)]
        return _split(ids, tables.find(ids))
    listed = list(dict.fromkeys(item_ids))
    unique = ids if len(listed) == len(ids) else encode_ids(listed, tables.layout.id_kind)
    return _split(listed, tables.find(unique))


def _first_places(ids_C: np.ndarray) -> np.ndarray:
    kept_C = np.empty(len(ids_C), np.int64)
    return kept_C[: first_of_each(ids_C, open_table(len(ids_C)), kept_C)]


def _split(ids: "np.ndarray | list[Id]", row_C: np.ndarray) -> Candidates:
    known_C = row_C >= 0
    if known_C.all():
        return Candidates(row_C, ids, [], 0, len(row_C))
    missing = np.flatnonzero(~known_C)
    named: list[Id] = [_plain(ids[i]) for i in missing[:UNKNOWN_ITEMS_NAMED_MAX].tolist()]
    kept = ids[known_C] if isinstance(ids, np.ndarray) else [ids[i] for i in np.flatnonzero(known_C).tolist()]
    return Candidates(row_C[known_C], kept, named, len(missing), len(row_C))


def _plain(value: Id | np.integer) -> Id:
    return value if isinstance(value, str) else int(value)


def rank_top(scores_C: np.ndarray, ids_C: "np.ndarray | list[Id]", top_k: int) -> np.ndarray:
    """int64 [A]: places of the best min(top_k, C), best first. Ids are all different."""
    count = min(top_k, len(scores_C))
    if count == 0:
        return np.empty(0, np.int64)
    if np.isnan(scores_C.min()):  # the least is no number if any is none
        scores_C = np.where(np.isnan(scores_C), -np.inf, scores_C)
    places = np.arange(len(scores_C))
    if count < len(scores_C):  # everything that ties with the last place stays, then the exact order decides
        places = np.flatnonzero(scores_C >= np.partition(scores_C, -count)[-count])
    return _in_order(scores_C, ids_C, places)[:count]


def _in_order(scores_C: np.ndarray, ids_C: "np.ndarray | list[Id]", places: np.ndarray) -> np.ndarray:
    if isinstance(ids_C, np.ndarray):
        return places[np.lexsort((ids_C[places], -scores_C[places]))]
    scores = scores_C[places].tolist()
    keys = [(-score, str(ids_C[place]).encode()) for score, place in zip(scores, places.tolist(), strict=True)]
    return places[sorted(range(len(keys)), key=keys.__getitem__)]
