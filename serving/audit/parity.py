"""The audit of answers (invariant I2): every answer recomputed by the reference network from the files of the version it names.

Nothing of serving/engine is imported: the audit shares only `schemas` with it. The user half is computed from the history recorded with the answer, on the
rows at the answer's watermark. So record requests that bring their history. An answer from a kept state may differ: the row of a behaviour may have changed
since the state was made (protocol D1).

Tolerance of a probability: server and reference may sum in different orders, so both differ from the exact value by rounding errors of the same size. The
network itself gives that size: the greatest difference between its fp32 and its fp64 form on the first answers of the version. The tolerance is 8 times as
large (for both sides, and for requests that were not measured), at least 32 eps. The tolerance of a score is how far it moves when every probability
moves by its tolerance.

Arrays: C known candidates, T tasks.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from infra.figures import Figures, Measured
from infra.index.parts import read_checkpoint_copy
from infra.index.store import IndexStore, find_index_store
from infra.kafka.security import Bootstrap
from schemas.actions import count_second
from schemas.errors import Corrupted
from schemas.features import Scope, encode_features
from schemas.ids import Id, IdKind, decode_id, encode_index_key
from schemas.index.manifest import Manifest, decode_manifest, manifest_path
from schemas.model.behaviour_codes import encode_kind
from schemas.model.checkpoint import read_checkpoint
from schemas.model.inputs import (
    BehaviourRow,
    CandidateRows,
    FeatureTensors,
    UserStates,
    behaviour_row,
    build_user_inputs,
    candidate_rows,
    encode_context,
    without_long,
)
from schemas.model.network import AifNetwork, InFloat64
from schemas.model.ranker.spec import encode_items
from schemas.model.score import rank_scores
from schemas.requests import InlineBehaviour, PrerankRequest
from schemas.token import VersionToken, decode_token
from serving.audit.recorded_answers import RecordedAnswer
from serving.audit.version_rows import VersionRows, positions_of
from serving.core.answer_check import Claim, Reference, check_answer
from serving.core.ladder import take_first

VERIFY_ANSWERS = Measured(
    "verify-answers",
    {
        "answers": "count",
        "answers_recomputed": "count",
        "mixed_versions": "count",
        "versions": "count",
        "score_error_max": "tolerances",
        "seconds_total": "s",
    },
)

FINAL_TOLERANCE = 5e-3  # of a logit of the final order: the server stores keys and values in fp16
LOGIT_MAX = 20.0  # as the server clips AIF's
AIF_ORDER = "aif_order"  # the rung of a final answer that the ranker did not order
_REASONS_MAX = 10
_MEASURED_ANSWERS = 4  # answers of each version that are also computed in fp64
_STATES_KEPT = 256
_TOLERANCE_MIN = 32 * float(np.finfo(np.float32).eps)


@dataclass
class Report:
    """The result of an audit. `mismatched`: answers that do not equal their version at their watermark; `error_max`: in units of the tolerance."""

    answers: int = 0
    recomputed: int = 0
    mismatched: int = 0
    items: int = 0
    error_max: float = 0.0
    tolerance_max: float = 0.0
    seconds: float = 0.0
    versions: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """The result as text."""
        tokens = ", ".join(f"{token} ({count})" for token, count in sorted(self.versions.items()))
        lines = [
            f"{self.recomputed} of {self.answers} answers recomputed in {self.seconds:.1f} s, {self.items} items, versions: {tokens}",
            f"{self.mismatched} answers equal no single version",
            f"greatest difference {self.error_max:.3g} of the tolerance ({self.tolerance_max:.2g} in probability)",
        ]
        return "\n".join([*lines, *self.reasons])

    def figures(self, file: str, sample: int | None) -> Figures:
        """The result as figures; `file` is the name of the file with the answers."""
        figures = Figures(VERIFY_ANSWERS, {"file": file, "sample": sample, "reasons": self.reasons})
        figures.add("answers", self.answers)
        figures.add("answers_recomputed", self.recomputed)
        figures.add("mixed_versions", self.mismatched)
        figures.add("versions", len(self.versions))
        figures.add("score_error_max", self.error_max)
        figures.add("seconds_total", self.seconds)
        return figures


def recompute(
    answers: Sequence[RecordedAnswer],
    store_url: str,
    bootstrap: Bootstrap,
    topic_prefix: str,
    sample: int | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Report:
    """Recomputes answers, or `sample` of them at even distances; calls `tell` after each.

    Raises Corrupted, Incompatible, Unavailable if files or log cannot be read."""
    torch.set_num_threads(1)  # the products are small, and on a busy machine OpenMP's spinning threads make this ten times slower
    started, report = time.monotonic(), Report(answers=len(answers))
    store = find_index_store(store_url)
    answers = [one for one in answers if one.answer.action != "cached"]  # computed from rows and a history of earlier
    chosen = answers if sample is None or sample >= len(answers) else [answers[i * len(answers) // sample] for i in range(sample)]
    by_token: dict[str, list[RecordedAnswer]] = {}
    for one in chosen:
        by_token.setdefault(one.answer.version_token, []).append(one)
    for token, group in by_token.items():
        _audit_version(store, decode_token(token), group, bootstrap, topic_prefix, report, lambda: tell(report.recomputed, len(chosen)))
    report.seconds = time.monotonic() - started
    return report


def _audit_version(
    store: IndexStore,
    token: VersionToken,
    group: Sequence[RecordedAnswer],
    bootstrap: Bootstrap,
    prefix: str,
    report: Report,
    tell: Callable[[], None],
) -> None:
    manifest = read_named_manifest(store, token)
    ids = _DecodedIds(manifest.layout.id_kind)
    rows = VersionRows(store, manifest, _keys_of(group, ids))
    positions = [positions_of(one.answer.freshness.watermark) for one in group]
    ends = {shard: max(p[shard] for p in positions) for shard in positions[0]}
    rows.read_deltas(bootstrap, prefix, token.version, ends)
    checkpoint = read_checkpoint(read_checkpoint_copy(store, manifest.checkpoint_sha256), manifest.checkpoint_sha256)
    auditor = _Auditor(checkpoint.network, ids, rows)
    for place, one in sorted(zip(positions, group, strict=True), key=lambda pair: sum(pair[0].values())):
        rows.at(place)
        wrong, off = auditor.check(one)
        report.recomputed += 1
        report.items += len(one.answer.items)
        report.versions[str(token)] += 1
        report.error_max = max(report.error_max, off)
        if wrong:
            report.mismatched += 1
            if len(report.reasons) < _REASONS_MAX:
                report.reasons.append(f"answer {one.answer.request_id} of {token}: {wrong}")
        tell()
    report.tolerance_max = max(report.tolerance_max, auditor.tolerance)


def read_named_manifest(store: IndexStore, token: VersionToken) -> Manifest:
    """The manifest that a token names. Raises Corrupted (`bad_manifest`) if its digest differs from the token's."""
    raw = store.get(manifest_path(token.version, token.revision))
    manifest = decode_manifest(raw)
    found = hashlib.sha256(raw).hexdigest()[:8]
    if found != token.digest8:
        raise Corrupted("bad_manifest", f"manifest {token.version}.{token.revision} has digest {found}, the answer names {token.digest8}")
    return manifest


class _DecodedIds(dict[Id, Id]):
    """Ids from JSON to ids of the catalogue's kind; each is decoded once, because requests share most items."""

    def __init__(self, kind: IdKind) -> None:
        super().__init__()
        self._kind = kind

    def __missing__(self, wire: Id) -> Id:
        self[wire] = decoded = decode_id(wire, self._kind)
        return decoded


def _keys_of(group: Iterable[RecordedAnswer], ids: _DecodedIds) -> Iterable[bytes]:
    """The index keys of all items in the requests of the group."""
    touched: set[Id] = set()
    for one in group:
        touched.update(one.request.item_ids, (b.item_id for b in one.request.behaviours or ()))
    return [encode_index_key(ids[wire]) for wire in touched]


class _Auditor:
    """Checks answers of one version, on rows that the caller moves to each answer's watermark. `tolerance`: of a probability."""

    def __init__(self, network: AifNetwork, ids: _DecodedIds, rows: VersionRows) -> None:
        self._network, self._ids, self._rows = network.eval(), ids, rows
        self._place = {i: rows.places[encode_index_key(i)] for i in ids.values()}
        self._states: dict[Any, UserStates] = {}
        self.tolerance = _TOLERANCE_MIN
        self._measured = 0

    def check(self, one: RecordedAnswer) -> tuple[str, float]:
        """(the fault, or ""; greatest difference in units of the tolerance)."""
        receipt = one.answer.receipt
        ranked = take_first(one.request.item_ids, None if receipt is None else receipt.candidates, one.request.retrieval_scores)
        asked = list(dict.fromkeys(self._ids[i] for i in ranked))
        known = [i for i in asked if self._rows.now.live_R[self._place[i]]]
        unknown_count, unsure_C = len(asked) - len(known), np.zeros(len(known), bool)
        if receipt is not None and receipt.passes == 2:
            known, unsure_C = self._pass_first(one, known)
        rows = self._rows_of(one, known)
        scores_C, probabilities_CT = self._scores(one, rows)
        tolerance_C = self._score_tolerance(scores_C, probabilities_CT, rows.bid_BC[0].numpy(), self.tolerance)
        tolerance_C[unsure_C] = np.inf
        places = {i: place for place, i in enumerate(known)}
        reference = Reference(places, scores_C, probabilities_CT, tolerance_C, self.tolerance, unknown_count)
        if one.request.final is not None:
            reference = self._order_finally(one, reference, rows.bid_BC[0].numpy())
        return check_answer(reference, self._claim(one))

    def _rows_of(self, one: RecordedAnswer, ids: Sequence[Id]) -> CandidateRows:
        places = np.array([self._place[i] for i in ids], int)
        return candidate_rows(self._network.spec, self._rows.now.rows_R[places], one.request.context)

    def _pass_first(self, one: RecordedAnswer, known: Sequence[Id]) -> tuple[list[Id], np.ndarray]:
        """The first of two passes: (the candidates of the second one, [C] whether rounding may leave one out: it is as good as the last)."""
        rows = self._rows_of(one, known)
        scores_C, probabilities_CT = self._scores(one, rows, without_long)
        tolerance_C = self._score_tolerance(scores_C, probabilities_CT, rows.bid_BC[0].numpy(), self.tolerance)
        last = np.sort(scores_C)[::-1][: count_second(len(known), one.request.top_k)][-1:]
        kept_C = np.flatnonzero(scores_C + 2 * tolerance_C >= last)
        return [known[place] for place in kept_C.tolist()], np.abs(scores_C - last)[kept_C] <= 2 * tolerance_C[kept_C]

    def _order_finally(self, one: RecordedAnswer, aif: Reference, bids_C: np.ndarray) -> Reference:
        """What the ranker makes of AIF's first `top_k` items. Those that are as good as the last of them may be among them or not."""
        report, count = one.answer.final, one.request.top_k
        if report is None or report.rung == AIF_ORDER or self._network.ranker is None:
            return aif
        last = np.sort(aif.scores_C)[::-1][min(count, len(aif.scores_C)) - 1]
        kept_C = aif.scores_C >= last - 2 * aif.tolerance_C
        ids = [i for i, place in aif.place.items() if kept_C[place]]
        history = [self._ids[b.item_id] for b in one.request.behaviours or ()]
        final_CT = _rank_finally(self._network, one.request, history, report.history_start, ids, aif.probabilities_CT[kept_C])
        spec, tolerance = self._network.spec, max(self.tolerance, FINAL_TOLERANCE)
        scores_C = rank_scores(spec.rank_terms, spec.tasks, final_CT, bids_C[kept_C])
        tolerance_C = self._score_tolerance(scores_C, final_CT, bids_C[kept_C], tolerance)
        if kept_C.sum() > count:
            tolerance_C[np.abs(aif.scores_C[kept_C] - last) <= 2 * aif.tolerance_C[kept_C]] = np.inf
        return Reference({i: place for place, i in enumerate(ids)}, scores_C, final_CT, tolerance_C, tolerance, aif.unknown_count)

    def _score_tolerance(self, scores_C: np.ndarray, probabilities_CT: np.ndarray, bids_C: np.ndarray, tolerance: float) -> np.ndarray:
        """How far a score may move if every probability moves by its tolerance; a score grows with each of them."""
        spec = self._network.spec
        low_C, high_C = (
            rank_scores(spec.rank_terms, spec.tasks, (probabilities_CT + by).clip(0, None), bids_C) for by in (-tolerance, tolerance)
        )
        return np.asarray(np.maximum(high_C - scores_C, scores_C - low_C) + np.finfo(np.float32).tiny)

    @torch.inference_mode()
    def _scores(
        self, one: RecordedAnswer, rows: CandidateRows, change: Callable[[UserStates], UserStates] = lambda states: states
    ) -> tuple[np.ndarray, np.ndarray]:
        states = change(self._state_of(one.request))
        scores, probabilities = self._network.scores(self._network.joint_logits(states, rows), rows.bid_BC)
        if self._measured < _MEASURED_ANSWERS and probabilities.numel():
            self._measured += 1
            with InFloat64():
                exact_states = change(self._network.user_states(self._user_inputs(one.request)))
                exact = torch.sigmoid(self._network.joint_logits(exact_states, rows))
            self.tolerance = max(self.tolerance, 8 * float((exact - probabilities).abs().max()))
        return scores[0].numpy(), probabilities[0].numpy()

    def _state_of(self, request: PrerankRequest) -> UserStates:
        """The user half, computed once for the same history on the same rows."""
        touched = [self._place[self._ids[b.item_id]] for b in request.behaviours or ()]
        history = request.model_dump_json(include={"features", "behaviours"})
        key = (history, self._rows.now.changes_R[touched].tobytes(), self._rows.now.live_R[touched].tobytes())
        if key not in self._states:
            if len(self._states) >= _STATES_KEPT:
                self._states.clear()
            self._states[key] = self._network.user_states(self._user_inputs(request))
        return self._states[key]

    def _user_inputs(self, request: PrerankRequest) -> Any:
        joined = [self._join(b) for b in request.behaviours or ()]
        return build_user_inputs(self._network.spec, request.features or {}, joined)

    def _join(self, behaviour: InlineBehaviour) -> BehaviourRow:
        """A behaviour together with its item's row."""
        item = self._ids[behaviour.item_id]
        place = self._place[item]
        row = self._rows.now.rows_R[place] if self._rows.now.live_R[place] else None
        return behaviour_row(self._network.spec, item, behaviour.kind, behaviour.features, row)

    def _claim(self, one: RecordedAnswer) -> Claim:
        items = one.answer.items
        ids = [self._ids[item.item_id] for item in items]
        count = one.request.top_k if one.request.final is None else min(one.request.top_k, one.request.final.top_k)
        return Claim(ids, [i.score for i in items], [i.probabilities for i in items], one.answer.unknown_count, count)


@torch.inference_mode()
def _rank_finally(
    network: AifNetwork, request: PrerankRequest, history: Sequence[Id], start: int, ids: Sequence[Id], aif_CT: np.ndarray
) -> np.ndarray:
    """Final probabilities [C, T] from AIF's, by one pass of the ranker over the whole window: no prefix, no pages, no pieces.

    `history`: the items of the request's behaviours; `start`: the first of them that is read.
    """
    ranker, spec = network.ranker, network.spec
    assert ranker is not None
    read = (request.behaviours or [])[start:]
    block = FeatureTensors.from_block(encode_features(spec.schema.of(Scope.USER), [request.features or {}]))
    items = torch.from_numpy(encode_items(ranker.spec, history[start:]))
    kinds = torch.tensor([encode_kind(spec, one.kind) for one in read], dtype=torch.int64)
    tokens = (
        ranker.profile_token(block),
        ranker.behaviour_tokens(items[None], kinds[None]),
        ranker.context_token(encode_context(spec, request.context)),
    )
    before = torch.cat(tokens, 1)
    logits = torch.logit(torch.from_numpy(aif_CT).double()).clamp(-LOGIT_MAX, LOGIT_MAX).float()[None]
    candidates = ranker.candidate_tokens(torch.from_numpy(encode_items(ranker.spec, ids))[None], logits)
    count = before.shape[1]
    seen = torch.ones(1, count, dtype=torch.bool)
    return torch.sigmoid(ranker.full(before, torch.arange(count)[None], seen, candidates, logits))[0].numpy()
