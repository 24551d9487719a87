"""Chooses the scorer of a device, and compiles everything before the first request."""

import functools

import numpy as np

from schemas.features import Feature, FeatureSchema, Scope
from schemas.ids import Id, IdKind
from schemas.index.layout import row_layout
from schemas.kinds import CATEGORICAL, EMBEDDING
from schemas.model.parameters import Parameters, parameter_shapes
from schemas.model.spec import ModelSpec
from schemas.users import BehaviourEvent
from serving.engine.devices.cpu import CpuScorer
from serving.engine.devices.scorer import GuardedScorer, Scorer
from serving.engine.tables.candidates import find_candidates, rank_top
from serving.engine.tables.tables import Tables, make_tables
from serving.engine.work import UserWork


def open_scorer(device: str, parameters: Parameters, version: int, tables: Tables) -> Scorer:
    """A scorer of one version on "cpu" or "cuda". Only the second loads torch, and it falls back to the first if the device fails."""
    if device == "cpu":
        return CpuScorer(parameters, version, tables)
    import torch

    from serving.engine.devices.cuda import CudaScorer

    torch.set_num_threads(1)  # OpenMP's spinning workers would take the core of the engine's own thread
    return GuardedScorer(lambda: CudaScorer(parameters, version, tables, device), lambda: CpuScorer(parameters, version, tables))


@functools.cache
def compile_kernels() -> None:
    """Compiles every kernel (or loads it from numba's cache) for both kinds of ids, so that no flip and no request has to."""
    ids: dict[IdKind, list[Id]] = {IdKind.INT64: [1, 2, 3], IdKind.TEXT: ["a", "b", "a-longer-id"]}
    for kind, bits in ((IdKind.INT64, 128), (IdKind.TEXT, 64)):
        _rank_once(kind, bits, ids[kind])


def _rank_once(kind: IdKind, bits: int, ids: list[Id]) -> None:
    schema = FeatureSchema(
        (Feature("category", Scope.ITEM, CATEGORICAL, buckets=4), Feature("image", Scope.ITEM, EMBEDDING, width=4)),
        id_kind=kind,
        sim_category="category",
        multimodal="image",
    )
    spec = ModelSpec(schema, width=4, bridges=2, bridge_width=4, hash_bits=bits, rank_by="click")
    tables = make_tables(row_layout(spec), ids)
    tables.columns["has_signature"][:] = 1
    arrays = {name: np.zeros(shape, np.float32) for name, shape in parameter_shapes(spec).items()}
    scorer = CpuScorer(Parameters(spec, arrays), 0, tables)
    state = scorer.user_state(UserWork({}, [BehaviourEvent(i, "click", 0) for i in ids]))
    found = find_candidates(tables, ids)
    scores_C, _ = scorer.score(state, found.slots_K, {})
    rank_top(scores_C, found.ids_K, 1)
