"""`aif eval data`: trains one model on a catalogue that a mapping file describes, and compares it with scores that need no learning.

No leak: histories and item features are as of the evaluation time, and the events contain nothing later (infra/data/mapped_catalogue.py). A history is as
long here as SimTier reads it, because much of what frequent buyers buy again they bought long ago.

    popularity   what the catalogue calls popularity: positives of the last days, or clicks times bid
    repeats      how often the user met the item before; among equals, popularity
    others       plain_scores.py and shown_scores.py of streams/training

The figures are those of DATA, below. Each measure has `_low` and `_high`, the bounds of its 95% interval over users.

Arrays: U users, C candidates (padded), T tasks.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

from infra.command import say
from infra.data.doubts import find_doubts
from infra.data.interactions import Log
from infra.data.mapping import DataMapping, read_mapping
from infra.data.periods import spell_time
from infra.figures import Figures
from infra.progress import counted, open_progress, tell_parts
from lab.catalogues.catalogue import Evaluation
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from lab.evaluation.candidates import Candidates, candidate_scores, collect_candidates
from lab.evaluation.live_data import FRESH as FRESH_IMPORT
from lab.evaluation.live_data import KEPT, Answers, Questions, serve_live
from lab.evaluation.rungs import FRESH, RUNGS, add_rung_figures, on_rung
from lab.figures.declared import read_bench
from schemas.ids import Id
from schemas.model.checkpoint import write_checkpoint
from schemas.model.network import AifNetwork
from schemas.model.score import rank_scores
from schemas.train_choices import TrainChoices
from streams.training.bootstrap import Bootstrap
from streams.training.comparison import BEST, FEW, MODEL, compare, judge
from streams.training.histories import fold_users
from streams.training.impressions import TrainingSet, join_table
from streams.training.item_table import build_item_table
from streams.training.measures import UserValues, expected_aucs, group_aucs, recalls_at_k, user_aucs
from streams.training.model_file import apply_choices, default_spec
from streams.training.questions import ask, score_tasks
from streams.training.shown_scores import shown_labels, shown_places, shown_scores
from streams.training.similarity_start import new_network
from streams.training.trainer import fit

DATA = read_bench("eval data")

PAIRS_AT_ONCE = 2_000_000  # candidates whose measures are taken together
CANDIDATES_MAX = 20_000_000  # of all users together, about 60 bytes each
SEEN_OFTEN = 4  # how many times a request may be learnt without a warning; beyond, the network overfits and recall falls
SHOWN_GAUC = "gauc_shown"
UNSEEN_MAX = 0.1  # share of positives on items unseen at the evaluation time, above which a warning says so
_IN_CONTEXT = "_in_context"
_W_HASH_SEED = 0  # models of other seeds are compared under the same hashing
_DRAWN: dict[str, Any] = {"outcomes": 1.0, "soft_labels": False}
LOSSES: Mapping[str, Mapping[str, Any]] = {  # choices of [train]
    "copr": {"copr": 0.3, "click": 1.0, "softmax": 0.0, **_DRAWN},
    "click": {"copr": 0.0, "click": 1.0, "softmax": 0.0, **_DRAWN},
    "softmax": {"copr": 0.0, "click": 0.0, "softmax": 1.0, **_DRAWN},
}


@dataclass(frozen=True)
class DataOptions:
    """The options of `aif eval data`; see its help. None: the mapping's value, or else the default for mapped data."""

    directory: Path
    mapping: Path
    steps: int | None = None
    loss: str | None = None
    learning_rate: float | None = None
    batch_requests: int | None = None
    hash_bits: int | None = None
    seed: int | None = None
    out: Path | None = None
    start: str | None = None
    end: str | None = None
    split: str | None = None
    rungs: bool = False
    live_hours: float = 0.0

    def mapped(self) -> DataMapping:
        """The mapping, with the period from the command line, and with as many users as `CANDIDATES_MAX` leaves room for."""
        mapping = read_mapping(self.mapping)
        users_max = max(1, CANDIDATES_MAX // mapping.holdout.candidates_max)
        period = {"start": self.start, "end": self.end, "split": self.split}
        named: dict[str, Any] = {name: value for name, value in period.items() if value is not None}
        if self.split == "user":
            named = {"start": None, "end": None, **named}  # instead of those of the mapping
        return mapping.model_copy(update={"holdout": mapping.holdout.model_copy(update={"users_max": users_max, **named})})

    def train(self, of_catalogue: TrainChoices) -> TrainChoices:
        """How to train: the command line's choices, else the catalogue's."""
        weights = LOSSES[self.loss] if self.loss is not None else {}
        names = ("steps", "learning_rate", "batch_requests", "seed")
        named = {name: value for name in names if (value := getattr(self, name)) is not None}
        return of_catalogue.replaced({**weights, **named})


def run_data(options: DataOptions) -> Figures:
    """Trains one model, measures it and the plain scores, and writes its checkpoint if `out` is given.

    Raises Misconfigured for a mapping that leaves nothing to learn from or to measure.
    """
    torch.set_num_threads(1)
    mapping = options.mapped()
    with open_progress() as progress:
        catalogue = MeasuredCatalogue(mapping, options.directory, tell=tell_parts(progress, "rows of [{}]"))
        chosen = options.train(catalogue.train)
        torch.manual_seed(chosen.seed)
        for doubt in find_doubts(catalogue.sources):
            say(f"warning: {doubt}")
        network, data, later = _join(catalogue, options, chosen, progress)
        chosen = chosen.with_steps(len(data))
        if mapping.impressions is None and (times := chosen.steps * chosen.batch_requests / max(1, len(data))) > SEEN_OFTEN:
            say(f"warning: {len(data):,} sampled requests are few: each is learnt {times:.0f} times; a shorter window_days gives more")
        task = progress.add_task("percent of the training", total=100)
        report = fit(network, data, chosen, lambda share: progress.update(task, completed=round(100 * share)))
        progress.update(task, completed=100)
        measured, users = _measure_all(network, catalogue, data, progress)
        of_rungs = _measure_rungs(network, data, catalogue.evaluation(), progress) if options.rungs else {}
        shown = _measure_shown(network, data, later, progress) if len(later) else {}
    told = {"directory": options.directory.name, "mapping": options.mapping.name, "hash_bits": network.spec.hash_bits}
    figures = Figures(DATA, told | _period(catalogue) | chosen.to_dict())
    warnings = list[str]()
    for of_users in (shown, measured):  # where there are impressions, the order of shown items comes first
        if of_users:
            warnings += add_data_figures(figures, catalogue.name, of_users)
    add_rung_figures(figures, catalogue.name, of_rungs)
    unseen = unseen_share(catalogue.log, catalogue.sources.end_ms)
    if unseen > UNSEEN_MAX:
        warnings.append(
            f"{unseen:.0%} of the positives in the period are on items without an earlier positive: no count and no history knows them"
        )
    if users < FEW and mapping.impressions is None and mapping.holdout.split == "time":
        warnings.append("--split user measures users who do not come back, too: it holds out the latest fifth of each user's behaviours")
    for warning in warnings:
        say(f"warning: {warning}")
    figures.add(f"{catalogue.name}.unseen_share", unseen)
    figures.add(f"{catalogue.name}.users", users)
    figures.add(f"{catalogue.name}.requests", len(data))
    figures.add(f"{catalogue.name}.aif.fit_s", report.seconds)
    if options.live_hours:
        _add_served(figures, catalogue.name, *serve_live(mapping, options.directory, network, options.live_hours))
    if options.out is not None:
        card = {name: entry["value"] for name, entry in figures.as_dict()["figures"].items()}
        about = {"train": chosen.to_dict(), "steps": report.steps, "told_until_ms": catalogue.sources.now_ms}
        write_checkpoint(options.out, network, options.out.stem, card | about)
    return figures


def _add_served(figures: Figures, name: str, questions: Questions, answers: Mapping[str, Answers]) -> None:
    """Every measure of the served answers, by arm, and the gain of kept statistics over stale ones and over a fresh import."""
    evaluation, shown, measured = questions.evaluation, questions.shown, dict[str, dict[str, UserValues]]()
    user_X = np.repeat([s.user for s in shown], [len(s.items) for s in shown])
    clicked_X = np.array([clicked for s in shown for clicked in s.clicked])
    for arm, answer in answers.items():
        measured[arm] = measure(questions.candidates, answer.candidates_UC, evaluation.k)
        if shown:
            measured[arm][SHOWN_GAUC] = user_aucs(user_X, answer.shown_X, clicked_X)
    for arm, measures in measured.items():
        for measure_name, values in measures.items():
            bootstrap = Bootstrap(len(values.value_U))
            figures.add_interval(f"{name}.{arm}.{measure_name}", bootstrap.interval(values))
            if arm != KEPT:
                figures.add_interval(f"{name}.{KEPT}.{measure_name}_over_{arm}", bootstrap.difference(measured[KEPT][measure_name], values))
    kept, fresh = answers[KEPT], answers[FRESH_IMPORT]
    differs = (kept.candidates_UC != fresh.candidates_UC).sum() + (kept.shown_X != fresh.shown_X).sum()
    figures.add(f"{name}.{KEPT}.scores", kept.candidates_UC.size + kept.shown_X.size)
    figures.add(f"{name}.{KEPT}.scores_unlike_fresh", int(differs))


def _join(
    catalogue: MeasuredCatalogue, options: DataOptions, chosen: TrainChoices, progress: Progress
) -> tuple[AifNetwork, TrainingSet, TrainingSet]:
    """An untrained network of the catalogue's spec, the training set, and the impressions of the period that is measured, over the same items and users."""
    named = {} if options.hash_bits is None else {"hash_bits": options.hash_bits}
    spec = apply_choices(default_spec(catalogue.schema), {**catalogue.model, **named})
    network = new_network(spec, _W_HASH_SEED, chosen.start)
    # One kind after the other becomes columns, because events are several times as large and must not lie in memory as a whole.
    told = catalogue.until([part.start_ms for part in catalogue.parts[1:]])
    items = build_item_table(
        spec, network.w_hash_KM, counted(told.items(), progress, "items"), counted(told.new_items(), progress, "new items"), None
    )
    users = fold_users(counted(catalogue.users(), progress, "users"), counted(told.behaviours(), progress, "behaviours"))
    impressions = itertools.chain(catalogue.impressions(), catalogue.shown_later())
    now_ms = catalogue.sources.now_ms
    whole = join_table(spec, items, users, counted(impressions, progress, "impressions"), frozen_ms=now_ms)
    is_later_Q = whole.time_Q >= now_ms
    return network, whole.take(np.flatnonzero(~is_later_Q)), whole.take(np.flatnonzero(is_later_Q))


def _measure_all(
    network: AifNetwork, catalogue: MeasuredCatalogue, data: TrainingSet, progress: Progress
) -> tuple[dict[str, dict[str, UserValues]], int]:
    """Every measure of every score, by the score's name, and the number of users; the bar shows the model's scores, which take nearly all of the time."""
    task = progress.add_task("percent of the candidates scored", total=100)
    parts: dict[str, dict[str, list[UserValues]]] = {}
    users = list[Id]()
    for number, evaluation in enumerate(catalogue.evaluations()):
        candidates = collect_candidates(evaluation)
        scores = candidate_scores(catalogue.log, evaluation, candidates)

        def advance(share: float, before: int = number) -> None:
            progress.update(task, completed=round(100 * (before + share) / len(catalogue.parts)))

        scores[MODEL] = model_scores(network, data, evaluation, candidates, advance)
        users += [user.user_id for user in evaluation.users]
        for name, scores_UC in scores.items():
            for measure_name, values in measure(candidates, scores_UC, evaluation.k).items():
                parts.setdefault(name, {}).setdefault(measure_name, []).append(values)
    progress.update(task, completed=100)
    places: dict[Id, int] = {}
    user_X = np.array([places.setdefault(user, len(places)) for user in users], np.int64)
    return {name: {m: UserValues.joined(v).by_user(user_X) for m, v in of.items()} for name, of in parts.items()}, len(places)


def unseen_share(log: Log, end_ms: int) -> float:
    """Of the positives from the evaluation time to `end_ms`, the share on items without any before it; 0 without positives."""
    items = len(log.item_ids)
    before_I, after_I = (log.positives.counts(items, *span) for span in ((0, log.now_ms), (log.now_ms, end_ms)))
    return float(after_I[before_I == 0].sum() / max(1, after_I.sum()))


def _measure_rungs(network: AifNetwork, data: TrainingSet, evaluation: Evaluation, progress: Progress) -> dict[str, dict[str, UserValues]]:
    """The model's measures by rung."""
    candidates, found = collect_candidates(evaluation), {}
    task = progress.add_task("rungs of the ladder", total=len(RUNGS))
    for rung in RUNGS:
        found[rung] = measure(candidates, model_scores(network, data, evaluation, candidates, rung=rung), evaluation.k)
        progress.advance(task)
    return found


def _measure_shown(network: AifNetwork, data: TrainingSet, later: TrainingSet, progress: Progress) -> dict[str, dict[str, UserValues]]:
    """GAUC over the items that each user was shown in the measured period, by score and measure: of the click and of each outcome that is a task.
    The same within requests of equal categorical context, because a request has one, and much of the rest tells scenarios apart. Items and users are
    as of the evaluation time; the context and the time are those of each request."""
    task = progress.add_task("percent of the shown items scored", total=100)
    known_QC = shown_places(later)
    user_X = np.broadcast_to(later.user_Q[:, None], known_QC.shape)[known_QC]
    _, scenario_Q = np.unique(later.context.categorical.numpy(), axis=0, return_inverse=True)
    scenario_X = np.broadcast_to(scenario_Q[:, None], known_QC.shape)[known_QC]
    labels, tasks = shown_labels(later), list(data.spec.tasks)
    by_task = shown_scores(data, later)
    logits_QCT = score_tasks(network, later, lambda share: progress.update(task, completed=round(100 * share)))
    found: dict[str, dict[str, UserValues]] = {}
    for name, label_X in labels.items():
        scores = by_task[name] | {MODEL: logits_QCT[..., tasks.index(name)][known_QC]}
        measure_name = SHOWN_GAUC if name == tasks[0] else f"{SHOWN_GAUC}_{name}"
        for score, score_X in scores.items():
            measures = found.setdefault(score, {})
            measures[measure_name] = user_aucs(user_X, score_X, label_X)
            if len(np.unique(scenario_X)) > 1:
                measures[measure_name + _IN_CONTEXT] = group_aucs(user_X, scenario_X, score_X, label_X)
    return found


def _period(catalogue: MeasuredCatalogue) -> dict[str, str]:
    """The split, and the period that is measured as ISO text."""
    times = {"from": catalogue.sources.now_ms, "until": catalogue.sources.end_ms}
    split = {"split": catalogue.mapping.holdout.split}
    return split | {key: spell_time(ms) for key, ms in times.items()}


def model_scores(
    network: AifNetwork,
    data: TrainingSet,
    evaluation: Evaluation,
    candidates: Candidates,
    progress: Callable[[float], None] = lambda _: None,
    rung: str = FRESH,
) -> np.ndarray:
    """The scores that the network ranks by (`rank_by` of its spec), float64 [U, C]. An item that the log does not describe comes last.

    `progress` gets the share that is done."""
    questions = ask(data, [user.user_id for user in evaluation.users], evaluation.now_ms, candidates.ids_UC)
    logits_UCT = score_tasks(network, on_rung(questions, rung), progress).astype(np.float64)
    scores_UC = rank_scores(network.spec.rank_terms, network.spec.tasks, 1 / (1 + np.exp(-logits_UCT)), questions.bid_QC)
    return np.where(questions.row_QC >= 0, scores_UC, -1.0)


def measure(candidates: Candidates, scores_UC: np.ndarray, k: int) -> dict[str, UserValues]:
    """GAUC and recall@k over all candidates, and over those that the user has not met, each per user.

    So many users at a time that the columns of a sort, of which there are ten, stay small.
    """
    rows = max(1, PAIRS_AT_ONCE // scores_UC.shape[1])
    blocks = [slice(first, first + rows) for first in range(0, len(scores_UC), rows)]
    measured = [_measure_block(candidates.of(users), scores_UC[users], k) for users in blocks]
    return {name: UserValues.joined([values[name] for values in measured]) for name in measured[0]}


def _measure_block(candidates: Candidates, scores_UC: np.ndarray, k: int) -> dict[str, UserValues]:
    is_item_UC, relevant_UC = candidates.present(), candidates.relevant_UC
    is_new_UC, truth_UC, below_all = is_item_UC & (candidates.met_UC == 0), relevant_UC.astype(float), scores_UC.min(initial=0.0) - 1
    return {
        "gauc": expected_aucs(scores_UC, truth_UC, is_item_UC),
        "gauc_new": expected_aucs(scores_UC, truth_UC, is_new_UC),
        f"recall_at_{k}": recalls_at_k(np.where(is_item_UC, scores_UC, below_all), relevant_UC, k),
        f"recall_new_at_{k}": recalls_at_k(np.where(is_new_UC, scores_UC, below_all), relevant_UC & is_new_UC, k),
    }


def add_data_figures(figures: Figures, name: str, measured: Mapping[str, Mapping[str, UserValues]]) -> list[str]:
    """Adds every measure of every score with its interval, and the model's gain over the best plain score of each measure. Returns warnings."""
    bootstrap = Bootstrap(len(next(iter(measured[MODEL].values())).value_U))
    for score, measures in measured.items():
        for measure_name, values in measures.items():
            figures.add_interval(f"{name}.{score}.{measure_name}", bootstrap.interval(values))
    gains = compare(measured)
    for gain in gains:
        figures.add_interval(f"{name}.{BEST}.{gain.measure}", gain.theirs)
        figures.add_interval(f"{name}.{MODEL}.{gain.measure}_gain", gain.gain)
    return judge(gains)
