"""The gain of following: in a world that moves, the HR@K of a frozen model and of the same one that continues to learn.

No broker: rounds go straight from the world into the view and the learner of `aif train --follow`. At the beginning of each period both rank the same
candidates for the same held-out users, and both know their histories. The truth is the world's eCPM of that period. Then the follower learns from the
impressions of the period, so it is always a period behind.

    recovered share   (followed - frozen) / (start - frozen), means over the second half of the periods

docs/EXPERIMENTS.md compares it with a model that is trained again for each period.

Arrays: U held-out users, C candidates, T moments (0 = before anything moved).
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from infra.figures import Figures, Interval
from infra.files import write_file_durably
from infra.progress import open_progress
from lab.catalogues.world import WorldSize
from lab.catalogues.world_catalogue import FIRST_ITEM_ID
from lab.catalogues.world_drift import DriftingCatalogue
from lab.evaluation.pictures import draw_drift
from lab.figures.declared import read_bench
from schemas.ids import Id
from schemas.model.network import AifNetwork
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices
from schemas.users import UserHistory
from streams.training.bootstrap import Bootstrap
from streams.training.following.followed_log import REQUESTS_MAX
from streams.training.following.learner import OnlineLearner
from streams.training.following.view import View
from streams.training.histories import build_histories, fold_users
from streams.training.impressions import Events, TrainingSet, join_table
from streams.training.item_table import build_item_table
from streams.training.measures import UserValues, hit_rates, teachers_choice
from streams.training.model_file import default_spec
from streams.training.questions import ask, score_tasks
from streams.training.similarity_start import new_network
from streams.training.trainer import fit

ONLINE = read_bench("eval online")

K, RELEVANT = 100, 10
_BEHAVIOURS_MAX = 96
_EXAM = 32  # number of an independent random stream of the world
SEEDS = 3
FORM = 3  # of a seed's file and of the measures; part of its name: raise it when either changes, so that no old file is read
Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class DriftPlan:
    """Sizes of a run. `steps` train the model that both begin with; `recency` is the field of its ModelSpec."""

    seed: int = 0
    size: WorldSize = field(default_factory=lambda: WorldSize(items=4_000, users=800, held_out=100, requests_per_user=3))
    periods: int = 8
    phase: float = 0.7
    past_requests_per_user: int = 8
    steps: int = 600
    candidates: int = 2_000
    learning_rate: float = 4e-3
    recency: tuple[int, ...] = (5, 20, 80, 200)


@dataclass(frozen=True)
class DriftCurves:
    """HR@K of each held-out user at each moment, float64 [T, U] each."""

    frozen_TU: np.ndarray
    followed_TU: np.ndarray

    @property
    def late(self) -> slice:
        """The moments that count: the second half."""
        return slice((len(self.frozen_TU) + 1) // 2, None)

    def recovered_share(self) -> Interval:
        """With an interval over users; NaN where the frozen model has lost nothing."""
        values = (self.frozen_TU[0], self.frozen_TU[self.late].mean(0), self.followed_TU[self.late].mean(0))
        start, frozen, followed = (UserValues(v, np.ones(len(v))) for v in values)
        if start.mean() <= frozen.mean():
            return Interval(float("nan"), float("nan"), float("nan"))

        def share(mean: Callable[[UserValues], np.ndarray]) -> np.ndarray:
            lost = mean(start) - mean(frozen)
            return np.divide(mean(followed) - mean(frozen), lost, out=np.full_like(lost, np.nan), where=lost > 0)

        return Bootstrap(len(values[0])).interval_of(share)


def run_drift(plan: DriftPlan, progress: Tell = lambda *_: None) -> DriftCurves:
    """Trains on the past, then goes through the periods. The same plan gives the same numbers on one machine."""
    torch.manual_seed(plan.seed)
    catalogue = DriftingCatalogue(plan.seed, plan.size, plan.periods, plan.past_requests_per_user, plan.phase)
    spec = dataclasses.replace(default_spec(catalogue.first.schema), behaviours_max=_BEHAVIOURS_MAX, recency=plan.recency)
    network = new_network(spec, plan.seed, "random")
    w_hash_KM = network.w_hash_KM
    assert w_hash_KM is not None, "the world's items have images"
    exam = _Exam(catalogue, spec, w_hash_KM, plan.candidates)
    view = View(spec, w_hash_KM)
    known = Events(list(catalogue.first.items()), list(catalogue.first.new_items()), list(catalogue.first.users()), [], [])
    view.fold(known)
    learner = OnlineLearner(
        _train_on_past(catalogue, plan, view, network, progress),
        TrainChoices(plan.learning_rate, seed=plan.seed),
    )
    frozen = AifNetwork(spec, w_hash_KM)
    frozen.load_state_dict(learner.network.state_dict())
    rates: list[tuple[np.ndarray, ...]] = []
    for period in range(plan.periods + 1):
        progress("follow", period / (plan.periods + 1))
        exam.meet(period)
        rates.append((exam.hit_rates(frozen), exam.hit_rates(learner.network)))
        if 0 < period < plan.periods:
            _follow(catalogue, period, view, learner)
    progress("follow", 1.0)
    return DriftCurves(*(np.stack(of) for of in zip(*rates, strict=True)))


def _train_on_past(catalogue: DriftingCatalogue, plan: DriftPlan, view: View, network: AifNetwork, progress: Tell) -> AifNetwork:
    behaviours, impressions = list(catalogue.behaviours(0)), list(catalogue.impressions(0))
    view.fold(Events([], [], [], behaviours, []))
    chosen = TrainChoices(steps=plan.steps, seed=plan.seed)
    fit(network, view.join(impressions), chosen, lambda share: progress("train on the past", share))
    return network


def _follow(catalogue: DriftingCatalogue, period: int, view: View, learner: OnlineLearner) -> None:
    """Learns from the impressions of one period, in rounds, as a follower does."""
    view.fold(Events([], [], [], list(catalogue.behaviours(period)), []))
    impressions = list(catalogue.impressions(period))
    for first in range(0, len(impressions), REQUESTS_MAX):
        for _ in learner.learn(view.join(impressions[first : first + REQUESTS_MAX])):
            pass


class _Exam:
    """Measures HR@K for the same users and candidates at every moment; only the truth moves."""

    def __init__(self, catalogue: DriftingCatalogue, spec: ModelSpec, w_hash_KM: np.ndarray, candidates: int) -> None:
        self._catalogue, self._spec, first = catalogue, spec, catalogue.first
        self._users: dict[int | str, UserHistory] = fold_users(list(first.users()), [])
        self._tables = join_table(spec, build_item_table(spec, w_hash_KM, first.items(), first.new_items(), None), {}, [])
        rng = first.world.rng(_EXAM)
        self._rows_UC = np.stack([np.sort(rng.choice(first.item_count, candidates, replace=False)) for _ in catalogue.held_out])

    def meet(self, period: int) -> None:
        """Asks of this period from now on: by its truth, of users whose histories end with the previous period. Periods 0 and 1 both begin with their
        past."""
        self._period = period
        self._relevant_UC = teachers_choice(self._catalogue.world(period).true_ecpm(self._catalogue.held_out, self._rows_UC), RELEVANT)
        if period == 1:
            return
        wanted = frozenset(self._catalogue.held_out_ids)
        told = [b for b in self._catalogue.behaviours(max(0, period - 1)) if b.user_id in wanted]
        for user, history in fold_users([], told).items():
            self._users[user].behaviours.extend(history.behaviours)

    def hit_rates(self, network: AifNetwork) -> np.ndarray:
        """HR@K of each user by a model, [U]."""
        logits_UC = score_tasks(network, self._questions())[..., 0].astype(np.float64)
        scores_UC = self._catalogue.first.world.items.bid_I[self._rows_UC] / (1 + np.exp(-logits_UC))
        return hit_rates(scores_UC, self._relevant_UC, K).value_U

    def _questions(self) -> TrainingSet:
        asked: dict[Id, UserHistory] = {user: self._users[user] for user in self._catalogue.held_out_ids}
        data = dataclasses.replace(self._tables, histories=build_histories(self._spec, self._tables.items, asked))
        at = self._catalogue.begin_ms(max(self._period, 1))
        return ask(data, self._catalogue.held_out_ids, at, FIRST_ITEM_ID + self._rows_UC, {"hour": f"h{at // 3_600_000 % 24}"})


def add_drift_figures(figures: Figures, curves: DriftCurves) -> None:
    """The figures of `aif eval online`."""
    figures.add_interval("online_recovered_share", curves.recovered_share())
    figures.add("online_start_hr_at_100", float(curves.frozen_TU[0].mean()))
    for name, of_TU in (("frozen", curves.frozen_TU), ("followed", curves.followed_TU)):
        figures.add(f"online_{name}_hr_at_100", float(of_TU[curves.late].mean()))
        for moment, value in enumerate(of_TU.mean(1).tolist()):
            figures.add(f"online_{name}_hr_at_100_{moment}", value)


def plan_drift(quick: bool) -> list[DriftPlan]:
    """The runs of the quick plan (one small world) or of the full one (larger worlds that change more, one for each seed)."""
    if quick:
        return [DriftPlan()]
    size = WorldSize(items=8_000, users=1_500, held_out=200, requests_per_user=3)
    return [DriftPlan(seed, size, periods=16, phase=1.0, steps=1_500) for seed in range(SEEDS)]


def run_online(out: Path, quick: bool) -> Figures:
    """Runs the missing seeds, writes online.png into `out`, and returns the figures over the users of all seeds together."""
    torch.set_num_threads(1)
    plans = plan_drift(quick)
    with open_progress() as progress:
        found = [_run_seed(plan, out / "online", progress) for plan in plans]
    curves = DriftCurves(**{f.name: np.concatenate([getattr(of, f.name) for of in found], axis=1) for f in fields(DriftCurves)})
    figures = Figures(ONLINE, {"quick": quick, "seeds": len(plans), **asdict(plans[0])})
    add_drift_figures(figures, curves)
    out.mkdir(parents=True, exist_ok=True)
    draw_drift(out / "online.png", curves.frozen_TU.mean(1), curves.followed_TU.mean(1), K)
    return figures


def _run_seed(plan: DriftPlan, folder: Path, progress: Progress) -> DriftCurves:
    told = json.dumps({"form": FORM, **asdict(plan)}, sort_keys=True)
    path = folder / f"seed-{plan.seed}.{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
    if path.exists():
        raw = json.loads(path.read_text())
        return DriftCurves(**{f.name: np.array(raw[f.name]) for f in fields(DriftCurves)})
    task = progress.add_task("", total=100)
    curves = run_drift(
        plan, lambda what, share: progress.update(task, description=f"seed {plan.seed}: {what} (%)", completed=int(100 * share))
    )
    content = {"plan": asdict(plan)} | {f.name: getattr(curves, f.name).tolist() for f in fields(DriftCurves)}
    write_file_durably(path, json.dumps(content).encode())
    return curves
