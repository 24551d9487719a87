"""`aif eval relay`: what the ranker adds to AIF's order, what a longer history is worth to it, and what 16 and 8 bits of its keys and values cost.

AIF reads the latest 128 behaviours and selects 300 of 2,000 candidates; a ranker orders these. One ranker reads 512 behaviours, which relay affords, and one
reads 128. Everything is trained on the world's impressions, and measured against its truth for users who are in none.

Arrays: U users, C candidates.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from infra.command import say
from infra.figures import Figures
from lab.catalogues.world import HistoryShape, WorldSize
from lab.evaluation.plan import SPEC
from lab.evaluation.world_truth import RELEVANT, WorldTruth, join_world, open_truth
from lab.figures.declared import read_bench
from schemas.model.network import AifNetwork
from schemas.model.ranker.layers import Kv
from schemas.model.ranker.spec import RankerSpec
from schemas.model.spec import ModelSpec
from schemas.train_choices import TrainChoices
from streams.training.bootstrap import Bootstrap
from streams.training.impressions import TrainingSet
from streams.training.measures import UserValues, best_columns, expected_aucs, hit_rates, teachers_choice
from streams.training.questions import score_tasks
from streams.training.ranker.fit import fit_ranker
from streams.training.ranker.sequences import RankerRows
from streams.training.similarity_start import new_network
from streams.training.trainer import fit

RELAY = read_bench("eval relay")

CHOSEN = 300  # candidates that AIF passes on
_WORLD_SEED = 2  # sizes, signals and the ranker's start were chosen on the world of seed 1
_SIGNALS = (("interest", 3.0), ("facet", 0.3), ("quality", 0.5), ("style", 0.1), ("price", 0.3))
_RANKER = RankerSpec(layers=1, history_max=512, history_step=64)
_TRAIN = TrainChoices(learning_rate=6e-3, batch_requests=16, copr=0.0, soft_labels=True)
_RANKER_COPR = 0.03  # the ranker is judged by its order alone
_CHUNK = 10  # users
_SIZE = WorldSize(4_000, 1_000, 700, 3, 64, HistoryShape(((-2.0, 400), (0.0, 800), (2.0, 1_600)), 12, 0.3, 50))
Store = Callable[[Kv], Kv]


@dataclass(frozen=True)
class RelayPlan:
    """The world, the steps of AIF and of each ranker, and the histories: AIF's, the short and the long ranker's."""

    size: WorldSize = _SIZE
    aif_steps: int = 500
    ranker_steps: int = 600
    aif_reads: int = 128
    ranker_reads: tuple[int, int] = (128, 512)


def in_fp16(kv: Kv) -> Kv:
    """Keys and values as a server keeps them."""
    return Kv(kv.keys.half().float(), kv.values.half().float())


def in_int8(kv: Kv) -> Kv:
    """In 8 bits, with a scale for each head and token."""

    def rounded(kept: torch.Tensor) -> torch.Tensor:
        scale = kept.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        return (kept / scale).round() * scale

    return Kv(rounded(kv.keys), rounded(kv.values))


def run_relay(plan: RelayPlan) -> Figures:
    """Trains, measures and returns the figures."""
    torch.set_num_threads(1)
    torch.manual_seed(_TRAIN.seed)
    truth = open_truth(_WORLD_SEED, plan.size, _SIGNALS)
    spec = ModelSpec(truth.schema, **dict(SPEC), behaviours_max=plan.aif_reads)
    aif = new_network(spec, 0, "random")
    w_hash_KM = aif.w_hash_KM
    say("training AIF ...")
    fit(aif, join_world(truth.catalogue, spec, w_hash_KM), dataclasses.replace(_TRAIN, steps=plan.aif_steps))
    figures = Figures(
        RELAY, {"aif_steps": plan.aif_steps, "ranker_steps": plan.ranker_steps, "copr": _RANKER_COPR, "users": plan.size.users}
    )
    exam, orders = None, dict[str, np.ndarray]()
    for reads in plan.ranker_reads:
        say(f"training a ranker of {reads} behaviours ...")
        ranked = dataclasses.replace(spec, ranker=dataclasses.replace(_RANKER, history_max=reads))
        torch.manual_seed(_TRAIN.seed)
        network, data = AifNetwork(ranked, w_hash_KM).eval(), join_world(truth.catalogue, ranked, w_hash_KM)
        network.load_state_dict(aif.state_dict(), strict=False)
        fit_ranker(network, data, dataclasses.replace(_TRAIN, ranker_steps=plan.ranker_steps, copr=_RANKER_COPR))
        exam = Exam(truth, network, data)
        orders[f"ranker_{reads}"] = exam.final_logits()
    assert exam is not None
    add_quality(figures, exam, {"aif": exam.aif_UC, **orders}, *(f"ranker_{reads}" for reads in plan.ranker_reads))
    add_rounding(figures, exam, orders[f"ranker_{plan.ranker_reads[-1]}"])
    return figures


class Exam:
    """The candidates that AIF passes on, and a ranker's logits for them."""

    def __init__(self, truth: WorldTruth, network: AifNetwork, data: TrainingSet) -> None:
        assert network.ranker is not None
        self._ranker = network.ranker
        rows_UC = truth.anywhere[:, : truth.counted]
        logits_UC = score_tasks(network, truth.questions(data, rows_UC))[..., 0]
        best_UC = best_columns(truth.bids(rows_UC) / (1 + np.exp(-logits_UC.astype(np.float64))), CHOSEN)
        chosen_UC = np.take_along_axis(rows_UC, best_UC, 1)
        self.aif_UC = np.take_along_axis(logits_UC, best_UC, 1)
        self.probability_UC, self.bid_UC = truth.probabilities(chosen_UC), truth.bids(chosen_UC)
        self._questions = truth.questions(data, chosen_UC)

    @torch.no_grad()
    def final_logits(self, store: Store = lambda kv: kv) -> np.ndarray:
        """Click logits [U, C] of the ranker, with keys and values kept in some form."""
        rows, aif_UCT, parts = RankerRows(self._questions), torch.from_numpy(self.aif_UC)[..., None], []
        for first in range(0, len(self._questions), _CHUNK):
            users = np.arange(first, min(first + _CHUNK, len(self._questions)))
            parts.append(rows.logits(self._ranker, users, self._questions.batch(users), aif_UCT[users], store)[..., 0].numpy())
        return np.concatenate(parts)

    def measures(self, logits_UC: np.ndarray) -> dict[str, UserValues]:
        """GAUC, and the share of the ten of highest true eCPM that are the first ten, among the candidates that were passed on."""
        relevant_UC = teachers_choice(self.probability_UC * self.bid_UC, RELEVANT)
        return {"gauc": expected_aucs(logits_UC, self.probability_UC), "hr_at_10": hit_rates(self.scores(logits_UC), relevant_UC, RELEVANT)}

    def scores(self, logits_UC: np.ndarray) -> np.ndarray:
        """Predicted eCPM [U, C]."""
        return self.bid_UC / (1 + np.exp(-logits_UC.astype(np.float64)))


def add_quality(figures: Figures, exam: Exam, orders: dict[str, np.ndarray], short: str, long: str) -> None:
    """Measures of each order, and the paired gains."""
    found = {name: exam.measures(logits_UC) for name, logits_UC in orders.items()}
    bootstrap = Bootstrap(len(exam.aif_UC))
    figures.add("users", len(exam.aif_UC))
    for name, measures in found.items():
        for measure, values in measures.items():
            figures.add_interval(f"{measure}_{name}", bootstrap.interval(values))
    for measure in ("gauc", "hr_at_10"):
        figures.add_interval(f"{measure}_gain", bootstrap.difference(found[long][measure], found["aif"][measure]))
        figures.add_interval(f"{measure}_gain_by_length", bootstrap.difference(found[long][measure], found[short][measure]))


def add_rounding(figures: Figures, exam: Exam, exact_UC: np.ndarray) -> None:
    """What 16 and 8 bits change for the trained weights: logits, the first ten, GAUC."""
    first_UC = teachers_choice(exam.scores(exact_UC), RELEVANT)
    gauc = exam.measures(exact_UC)["gauc"].mean()
    for name, store in (("fp16", in_fp16), ("int8", in_int8)):
        logits_UC = exam.final_logits(store)
        figures.add(f"epsilon_{name}", float(np.abs(logits_UC - exact_UC).max()))
        figures.add(f"top10_kept_{name}", RELEVANT * hit_rates(exam.scores(logits_UC), first_UC, RELEVANT).mean())
        figures.add(f"gauc_lost_{name}", gauc - exam.measures(logits_UC)["gauc"].mean())
