"""The work of a canary: a new version and the live one score a fixed sample of users and items.

Invariants: both versions score the same items in the same state, whatever the age of the live version's files. The new version's rows come from its files.
The live version's rows are encoded here, with its checkpoint, from the inputs that were sealed with the new version. The sample follows from the new
version's manifest and the constants here. So every worker finds the same figures (up to the arithmetic of its processor), and a repetition costs only
time. Memory is bounded by users x items, whatever the size of the version.
The users are made up: their histories are items of the sample, their profiles and contexts are drawn by the kinds of the features. With real users from
the topics the figures would depend on the moment.

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
from infra.index.sample import SampledRows, find_rows, read_item_sample
from infra.index.store import IndexStore
from schemas.errors import AifError, Unavailable
from schemas.features import FeatureSchema, Scope
from schemas.ids import decode_index_key
from schemas.index.control import VersionStatus
from schemas.index.item_sample import SampledItem
from schemas.model.checkpoint import read_checkpoint
from schemas.model.inputs import UserInputs, behaviour_row, build_user_inputs, candidate_rows
from schemas.model.network import AifNetwork
from streams.builders.jobs import CanaryJob
from streams.core.canary import CanaryFigures, Scores, measure_bad_share, measure_distance, measure_overlap, measure_spread
from streams.core.item import unpack_features
from streams.encoder import EncoderCache

HISTORY_MAX = 40
_NO_ITEMS = "the index has no items, or the samples of the version are gone"
_SEED = 0


@dataclass(frozen=True)
class Side:
    """One version of the comparison."""

    network: AifNetwork
    sample: SampledRows


@dataclass(frozen=True)
class MadeUpUser:
    """Raw features by name, so that models with different schemas read the same user; `history` has the index keys of items in the sample."""

    profile: Mapping[str, Any]
    context: Mapping[str, Any]
    history: Sequence[bytes]


def run_canary(store: IndexStore, encoders: EncoderCache, job: CanaryJob) -> CanaryFigures:
    """The figures of `job.status`, against `job.live` if there is one. Raises Unavailable if the store does not answer, Corrupted where the new version
    cannot be read."""
    manifest = read_manifest(store, job.status)
    items = read_item_sample(store, manifest, job.items)
    new = Side(_open_network(store, manifest.checkpoint_sha256), find_rows(store, manifest, [item.key for item in items]))
    live: Side | None = None
    uncompared = ""
    if job.live is not None:
        try:
            live = _open_live(store, encoders, job.live, new, items)
        except AifError as error:
            if isinstance(error, Unavailable) and error.code != "missing_file":
                raise  # the store is away: that says nothing about the version, and a verdict would stay
            uncompared = f"version {job.live.version} cannot be read: {error}"
    users = make_users([side.network.spec.schema for side in (new, live) if side is not None], new.sample.keys, job.users)
    scores = score(new, users)
    figures = CanaryFigures(scores.scores_UC.size, measure_bad_share(scores), uncompared=uncompared)
    if job.live is None or live is None:
        return figures
    return _compare(figures, scores, score(live, users), job.live.version)


def _compare(figures: CanaryFigures, new: Scores, live: Scores, against: int) -> CanaryFigures:
    """Compares the candidates that both versions give finite logits, for the click and the other tasks that both have."""
    fine_C = np.isfinite(new.logits_UCT).all(axis=(0, 2)) & np.isfinite(live.logits_UCT).all(axis=(0, 2))
    if not fine_C.any():
        return dataclasses.replace(figures, uncompared="no item has finite logits in both versions" if fine_C.size else _NO_ITEMS)
    new_UCT, live_UCT = new.logits_UCT[:, fine_C], live.logits_UCT[:, fine_C]
    others = {(new.tasks.index(task), live.tasks.index(task)) for task in new.tasks if task in live.tasks}
    common = {(0, 0), *others}  # each model's first is the click, whatever its name
    return dataclasses.replace(
        figures,
        against=against,
        distance=max(measure_distance(new_UCT[..., t], live_UCT[..., its]) for t, its in common),
        spread=measure_spread(live_UCT[..., 0]),
        overlap=measure_overlap(new_UCT[..., 0], live_UCT[..., 0]),
    )


def _open_live(store: IndexStore, encoders: EncoderCache, status: VersionStatus, new: Side, items: Sequence[SampledItem]) -> Side:
    """The live version's model on the inputs of the new version's items."""
    encoder = encoders.get(status.version, status.checkpoint_sha256)
    inputs = {item.key: item for item in items}
    chosen = [inputs[key] for key in new.sample.keys]
    rows_R = encoder.encode([unpack_features(item.features) for item in chosen], [item.embedding for item in chosen])
    return Side(_open_network(store, status.checkpoint_sha256), SampledRows(new.sample.keys, rows_R))


def _open_network(store: IndexStore, sha256: str) -> AifNetwork:
    return read_checkpoint(read_checkpoint_copy(store, sha256), sha256).network.eval()


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
            user[feature.name] = feature.kind.draw(feature, rng)
    return users


@torch.inference_mode()
def score(side: Side, users: Sequence[MadeUpUser]) -> Scores:
    """The scores and logits of every item of the side's sample for every user."""
    tasks = side.network.spec.tasks
    rows = dict(zip(side.sample.keys, side.sample.rows_R, strict=True))
    if not rows:
        return Scores(np.zeros((len(users), 0), np.float32), np.zeros((len(users), 0, len(tasks)), np.float32), tasks)
    scored = [_score_user(side, rows, user) for user in users]
    return Scores(np.stack([scores for scores, _ in scored]), np.stack([logits for _, logits in scored]), tasks)


def _score_user(side: Side, rows: Mapping[bytes, np.ndarray], user: MadeUpUser) -> tuple[np.ndarray, np.ndarray]:
    network = side.network
    states = network.user_states(_inputs_of(side, rows, user))
    candidates = candidate_rows(network.spec, side.sample.rows_R, user.context)
    logits_BCT = network.joint_logits(states, candidates)
    scores_BC, _ = network.scores(logits_BCT, candidates.bid_BC)
    return scores_BC[0].numpy(), logits_BCT[0].numpy()


def _inputs_of(side: Side, rows: Mapping[bytes, np.ndarray], user: MadeUpUser) -> UserInputs:
    spec = side.network.spec
    kinds = spec.schema.behaviour_kinds or ("click",)
    behaviours = [
        behaviour_row(spec, decode_index_key(key, spec.schema.id_kind), kinds[at % len(kinds)], {}, rows.get(key))
        for at, key in enumerate(user.history)
    ]
    return build_user_inputs(spec, user.profile, behaviours)
