"""Which cells `aif eval tables` trains: the full plan (every model, three seeds, trained to the plateau) and the quick one (few models, one seed)."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.catalogues.world import LIGHT, WorldSize
from lab.catalogues.world_catalogue import BUY
from lab.evaluation.cells import CellPlan
from lab.evaluation.family.variant import AIF, BASE, BRIDGES, FULL, MORE_CANDIDATES, TABLE_2, TABLE_3, TEACHER, Variant
from schemas.train_choices import TrainChoices

# The family's sizes (fields of a ModelSpec). As in the paper, attention reads a short sequence; older behaviours are read by long_term and sim only.
SPEC: tuple[tuple[str, Any], ...] = (
    ("width", 16),
    ("bridges", 12),
    ("bridge_width", 16),
    ("hash_bits", 128),
    ("embedding_width", 8),
    ("attended_behaviours", 32),
)
# The paper's labels: drawn clicks, and the order of a ranking teacher who learnt from drawn clicks (Eq. 10).
# COPR's weight was chosen on the world of seed 0, 4,000 items, 700 steps (GAUC, HR@100): 0 = .808, .666; .01 = .821, .693; .03 = .834, .721;
# .1 = .797, .567; .3 = .786, .527. It is a sum over pairs, the clicks' loss a mean over items: a heavier one leaves clicks no say.
TRAIN = TrainChoices(learning_rate=6e-3, batch_requests=16, copr=0.03, calibrated=True)
# What no log has: the true click probability. An upper bound, and the label where only the reading is compared (history.py).
SOFT = dataclasses.replace(TRAIN, copr=0.0, soft_labels=True)
# The world of the tables has stronger facets than the default one (lab/catalogues/world.py), which only bridges can represent: a width of 16 is too
# narrow for a user's six facets, and there are twice as many bridges as facets. In other worlds Algorithm 1 has nothing to add.
SIGNALS = (("facet", 1.8), ("quality", 0.7))
# Everything above was chosen on the world of seed 0, so the users and items measured here are new.
WORLD_SEED = 1
SIZE = WorldSize(held_out=500, history=LIGHT)
QUICK_STEPS, FULL_STEPS, FULL_SEEDS = 500, 1_000, 3  # 5 minutes and an hour of two cores
_QUICK_TABLE_3 = ("din_simtier", "lsh_256", "mm_din_simtier", "mm_din_moments")


# A model, choices of its training that differ from TRAIN, and the model that teaches it (None: the world's true eCPM is the teacher's).
Lesson = tuple[Variant, Mapping[str, Any], Variant | None]


@dataclass(frozen=True)
class TablesPlan:
    """The trainings of one run: models with `seeds` seeds (0, 1, ...) each, all on the same world."""

    quick: bool
    steps: int
    seeds: int
    size: WorldSize

    @property
    def lessons(self) -> Sequence[Lesson]:
        """The models and their losses, the most important first. "Base with +15% candidates" is not among them: it is Base, ranking more.

        The quick plan learns the true probability. A teacher would take as long as all other models together. With drawn clicks so few steps are not
        enough for every model.
        """
        table_2 = tuple(v for v in TABLE_2 if v is not MORE_CANDIDATES)
        if self.quick:
            return [(v, _TRUE_LABELS, None) for v in (*table_2, *(v for v in TABLE_3 if v.name in _QUICK_TABLE_3))]
        return [*((v, {}, TEACHER) for v in (*table_2, *BRIDGES, *TABLE_3, TWO_TASKS)), *OTHER_LABELS, *UPPER_BOUND]

    @property
    def cells(self) -> list[CellPlan]:
        """Every model with every seed, ordered by seed, so that an interrupted run has complete tables of the first seeds."""
        return [
            CellPlan(
                variant=variant,
                size=self.size,
                spec=SPEC,
                train=dataclasses.replace(TRAIN, steps=self.steps, seed=seed, **differing),
                signals=SIGNALS,
                world_seed=WORLD_SEED,
                taught_by=teacher,
            )
            for seed in range(self.seeds)
            for variant, differing, teacher in self.lessons
        ]


# The served network with a second task: the probability that an impression leads to a purchase.
TWO_TASKS = dataclasses.replace(
    AIF, name="aif_two_tasks", title="AIF, click and purchase", sizes=(("tasks", ("click", BUY)), ("rank_by", f"click * {BUY}^0.5 * bid"))
)


def _renamed(variant: Variant, name: str, title: str) -> Variant:
    return dataclasses.replace(variant, name=name, title=title)


_CLICKS = {"copr": 0.0}  # drawn clicks alone
# AIF with other labels than those of the tables; the teacher has drawn clicks alone.
OTHER_LABELS: Sequence[Lesson] = (
    (TEACHER, _CLICKS, None),
    (_renamed(AIF, "aif_click", "drawn clicks"), _CLICKS, None),
    (_renamed(AIF, "aif_copr_true", "drawn clicks, and COPR in the true order"), {}, None),
)
_TRUE_LABELS = {"copr": SOFT.copr, "soft_labels": SOFT.soft_labels}  # the true click probability as label
UPPER_BOUND: Sequence[Lesson] = tuple((_renamed(v, f"{v.name}_soft", v.title), _TRUE_LABELS, None) for v in (BASE, FULL, AIF))


def plan_tables(quick: bool, steps: int | None = None, seeds: int | None = None) -> TablesPlan:
    """The quick or the full plan; `steps` and `seeds` replace its own numbers unless they are None."""
    return TablesPlan(quick, steps or (QUICK_STEPS if quick else FULL_STEPS), seeds or (1 if quick else FULL_SEEDS), SIZE)
