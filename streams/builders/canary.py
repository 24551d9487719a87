"""The work of a canary: a new version and the live one score a fixed sample of users and items, from the files of both.

Here: the sample, the scores, the figures. Not here: the comparison and the verdict (core/canary.py), when it runs (streams/versions/promotion.py), the
process it runs in (process.py).

Invariants: the sample follows from the two manifests and the constants here, so every worker finds the same figures (up to the arithmetic of its
processor), and doing it again costs only time. Memory is bounded by users x items, whatever the size of the version.
The users are made up: their histories are items of the sample, their profiles and contexts are drawn by the kinds of the features. With real users from
the topics the figures would depend on the moment. A live version that cannot be read is not compared with: the new one may be the way out.

Arrays: U users, C candidates.
Source: schemas/model/network.py, in its plain form.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from infra.index.parts import read_checkpoint_copy, read_manifest
from infra.index.sample import SampledRows, find_rows, sample_rows
from infra.index.store import IndexStore
from schemas.errors import AifError
from schemas.features import FeatureSchema, Scope
from schemas.ids import decode_index_key
from schemas.index.control import VersionStatus
from schemas.index.manifest import Manifest
from schemas.model.checkpoint import read_checkpoint
from schemas.model.inputs import UserInputs, behaviour_row, build_user_inputs, candidate_rows
from schemas.model.network import AifNetwork
from schemas.model.random_inputs import draw_value
from streams.builders.jobs import CanaryJob
from streams.core.canary import SPREAD_MIN, CanaryFigures, Scores, measure_bad_share, measure_distance, measure_overlap, measure_spread

HISTORY_MAX = 40
_SEED = 0


@dataclass(frozen=True)
class Side:
    """One version of the comparison."""

    manifest: Manifest
    network: AifNetwork
    sample: SampledRows


@dataclass(frozen=True)
class MadeUpUser:
    """Raw features by name, so that models with different schemas read the same user; `history` has the index keys of items in the sample."""

    profile: Mapping[str, Any]
    context: Mapping[str, Any]
    history: Sequence[bytes]


def run_canary(store: IndexStore, job: CanaryJob) -> CanaryFigures:
    """The figures of `job.status`, against `job.live` if there is one. Raises Unavailable, Corrupted where the new version cannot be read."""
    manifest = read_manifest(store, job.status)
    new = Side(manifest, _open_network(store, manifest), sample_rows(store, manifest, job.items))
    live = _open_live(store, job.live, new.sample.keys) if job.live is not None else None
    common = new.sample.keys if live is None else live.sample.keys
    users = make_users([side.network.spec.schema for side in (new, live) if side is not None], common, job.users)
    scores = score(new, users)
    figures = CanaryFigures(job.status.version, job.status.revision, scores.scores_UC.size, measure_bad_share(scores))
    if live is None or not common or not scores.scores_UC.size:
        return figures
    place = {key: at for at, key in enumerate(new.sample.keys)}
    figures = dataclasses.replace(figures, missed=max(0, _records_in(manifest) - _records_in(live.manifest)))
    return _compare(figures, scores.probabilities_UC[:, [place[key] for key in common]], score(live, users).probabilities_UC, live)


def _records_in(manifest: Manifest) -> int:
    return sum(sum(seal.source_offsets.values()) for seal in manifest.seals)


def _compare(figures: CanaryFigures, new_UC: np.ndarray, live_UC: np.ndarray, live: Side) -> CanaryFigures:
    """Compares the candidates that both versions give finite scores, unless the live version gives nearly all the same score."""
    fine_C = np.isfinite(new_UC).all(axis=0) & np.isfinite(live_UC).all(axis=0)
    new_UC, live_UC = new_UC[:, fine_C], live_UC[:, fine_C]
    if not new_UC.size or measure_spread(live_UC) < SPREAD_MIN:
        return figures
    distance, overlap = measure_distance(new_UC, live_UC), measure_overlap(new_UC, live_UC)
    return dataclasses.replace(figures, against=live.manifest.version, distance=distance, overlap=overlap)


def _open_live(store: IndexStore, status: VersionStatus, keys: Sequence[bytes]) -> Side | None:
    try:
        manifest = read_manifest(store, status)
        sample = find_rows(store, manifest, keys)
        return Side(manifest, _open_network(store, manifest), sample) if len(sample.keys) else None
    except AifError:
        return None


def _open_network(store: IndexStore, manifest: Manifest) -> AifNetwork:
    return read_checkpoint(read_checkpoint_copy(store, manifest.checkpoint_sha256), manifest.checkpoint_sha256).network.eval()


def make_users(schemas: Sequence[FeatureSchema], keys: Sequence[bytes], count: int) -> list[MadeUpUser]:
    """`count` users whose raw features all of the schemas can read. The values of a feature follow from its name alone."""
    rng = np.random.default_rng(_SEED)
    drawn = {scope: _draw_features(schemas, scope, count) for scope in (Scope.USER, Scope.CONTEXT)}
    length = min(HISTORY_MAX, len(keys))
    histories = [[keys[at] for at in rng.integers(0, len(keys), length)] if length else [] for _ in range(count)]
    return [MadeUpUser(drawn[Scope.USER][u], drawn[Scope.CONTEXT][u], history) for u, history in enumerate(histories)]


def _draw_features(schemas: Sequence[FeatureSchema], scope: Scope, count: int) -> list[dict[str, Any]]:
    users: list[dict[str, Any]] = [{} for _ in range(count)]
    for feature in {f.name: f for schema in reversed(schemas) for f in schema.of(scope)}.values():
        rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(feature.name.encode(), digest_size=8).digest()))
        for user in users:
            user[feature.name] = draw_value(feature, rng)
    return users


@torch.inference_mode()
def score(side: Side, users: Sequence[MadeUpUser]) -> Scores:
    """The scores of every item of the side's sample for every user."""
    rows = dict(zip(side.sample.keys, side.sample.rows_R, strict=True))
    if not rows:
        return Scores(*np.zeros((2, len(users), 0), np.float32))
    scored = [_score_user(side, rows, user) for user in users]
    return Scores(np.stack([s for s, _ in scored]), np.stack([p for _, p in scored]))


def _score_user(side: Side, rows: Mapping[bytes, np.ndarray], user: MadeUpUser) -> tuple[np.ndarray, np.ndarray]:
    network = side.network
    states = network.user_states(_inputs_of(side, rows, user))
    candidates = candidate_rows(network.spec, side.sample.rows_R, user.context)
    scores_BC, probabilities_BCT = network.scores(network.joint_logits(states, candidates), candidates.bid_BC)
    return scores_BC[0].numpy(), probabilities_BCT[0, :, 0].numpy()


def _inputs_of(side: Side, rows: Mapping[bytes, np.ndarray], user: MadeUpUser) -> UserInputs:
    spec = side.network.spec
    kinds = spec.schema.behaviour_kinds or ("click",)
    behaviours = [
        behaviour_row(spec, decode_index_key(key, spec.schema.id_kind), kinds[at % len(kinds)], {}, rows.get(key))
        for at, key in enumerate(user.history)
    ]
    return build_user_inputs(spec, user.profile, behaviours)
