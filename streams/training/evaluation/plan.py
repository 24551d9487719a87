"""Which cells `aif eval tables` runs: every model with every seed, to the plateau, or few models once and soon.

Here: sizes and lists only. Not here: running (runner.py), figures (tables.py).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.data.world import WorldSize
from infra.data.world_catalogue import BUY
from streams.training.evaluation.cells import CellPlan
from streams.training.evaluation.world_truth import TUNING
from streams.training.family.variant import AIF, BASE, BRIDGES, FULL, MORE_CANDIDATES, TABLE_2, TABLE_3, TEACHER, Variant
from streams.training.losses import LossWeights

# The family's sizes (fields of a ModelSpec). Attention sees a short sequence, as in the paper: what is older is the business of long_term.
SPEC: tuple[tuple[str, Any], ...] = (
    ("width", 16),
    ("bridges", 12),
    ("bridge_width", 16),
    ("hash_bits", 128),
    ("embedding_width", 8),
    ("attended_behaviours", 32),
)
# The teacher's click probability as label: measured best for GAUC and HR in this world (1,000 steps, width 32, default signals: GAUC .829 and
# HR .735; with COPR at 0.3 besides .816 and .713; COPR and drawn clicks .816 and .714).
LOSS = LossWeights(copr=0.0, click=1.0, soft_labels=True)
LEARNING_RATE = 6e-3
BATCH_REQUESTS = 16
# The world of the tables: of the default one (infra/data/world.py) with more of what only bridges can tell. A width of 16 does not hold the
# six facets of a user, and bridges are about twice as many as those: otherwise Algorithm 1 has nothing to add.
SIGNALS = (("facet", 1.8), ("quality", 0.7))
# All of the above was chosen on worlds of seed 0, so users and items of this one are new. Who chooses anew does it by its tuning fold.
WORLD_SEED = 1
SIZE = WorldSize(held_out=500)
QUICK_STEPS, FULL_STEPS, FULL_SEEDS = 2_400, 6_000, 3
_QUICK_TABLE_3 = ("din_simtier", "lsh_256", "mm_din_simtier", "mm_din_moments")
# The choices that `--tune` lays side by side: (steps, learning rate), for the models whose difference is the headline.
TUNED = (
    (QUICK_STEPS, 3e-3),
    (QUICK_STEPS, LEARNING_RATE),
    (QUICK_STEPS, 1.2e-2),
    (FULL_STEPS, LEARNING_RATE),
    (2 * FULL_STEPS, LEARNING_RATE),
)
TUNED_MODELS = (BASE, FULL, AIF)


@dataclass(frozen=True)
class Lesson:
    """A model and what it is trained with."""

    variant: Variant
    loss: LossWeights = LOSS
    taught_by: Variant | None = None


@dataclass(frozen=True)
class TablesPlan:
    """What one run trains. `seeds` are 0, 1, ...; the world is one and the same."""

    quick: bool
    steps: int
    seeds: int
    size: WorldSize

    @property
    def lessons(self) -> Sequence[Lesson]:
        """The models and their losses, the most important first. "+15% candidates" is the base model itself, asked about more."""
        table_2 = tuple(v for v in TABLE_2 if v is not MORE_CANDIDATES)
        if self.quick:
            return [Lesson(v) for v in (*table_2, *(v for v in TABLE_3 if v.name in _QUICK_TABLE_3), TEACHER)]
        return [*(Lesson(v) for v in (*table_2, *BRIDGES, *TABLE_3, TEACHER, TWO_TASKS)), *OTHER_LOSSES.values()]

    @property
    def cells(self) -> list[CellPlan]:
        """Every model with every seed, seed by seed, so that a run that is stopped has whole tables of the first seeds."""
        return [self._cell(lesson, seed) for seed in range(self.seeds) for lesson in self.lessons]

    def _cell(self, lesson: Lesson, seed: int) -> CellPlan:
        return CellPlan(
            variant=lesson.variant,
            seed=seed,
            size=self.size,
            steps=self.steps,
            spec=SPEC,
            loss=lesson.loss,
            learning_rate=LEARNING_RATE,
            batch_requests=BATCH_REQUESTS,
            signals=SIGNALS,
            world_seed=WORLD_SEED,
            taught_by=lesson.taught_by,
        )

    @property
    def tuning_cells(self) -> list[CellPlan]:
        """The choices of `TUNED` for the models of the headline, measured on the tuning fold; the cheapest first."""
        return [
            dataclasses.replace(self._cell(Lesson(variant), 0), steps=steps, learning_rate=rate, fold=TUNING)
            for steps, rate in TUNED
            for variant in TUNED_MODELS
        ]


# The served network with a second task: whether an impression ends in a purchase.
TWO_TASKS = dataclasses.replace(
    AIF, name="aif_two_tasks", title="AIF, click and purchase", sizes=(("tasks", ("click", BUY)), ("rank_by", f"click * {BUY}^0.5 * bid"))
)


def _renamed(variant: Variant, name: str, title: str) -> Variant:
    return dataclasses.replace(variant, name=name, title=title)


# What else AIF can be trained with, by the name of its cell, and what the teacher learns from clicks alone.
_CLICKS = LossWeights(copr=0.0, click=1.0)
_COPR = LossWeights(copr=0.3, click=1.0)
OTHER_LOSSES = {
    lesson.variant.name: lesson
    for lesson in (
        Lesson(_renamed(AIF, "aif_copr_soft", "COPR and the true probability"), LossWeights(copr=0.3, click=1.0, soft_labels=True)),
        Lesson(_renamed(AIF, "aif_copr_click", "COPR in the true order, and drawn clicks"), _COPR),
        Lesson(
            _renamed(AIF, "aif_copr_taught", "COPR in the order of the teacher, who learnt from drawn clicks, and drawn clicks"),
            _COPR,
            TEACHER,
        ),
        Lesson(_renamed(AIF, "aif_click", "drawn clicks"), _CLICKS),
        Lesson(_renamed(TEACHER, "teacher_click", "drawn clicks (the teacher itself)"), _CLICKS),
    )
}


def plan_tables(quick: bool, steps: int | None = None, seeds: int | None = None) -> TablesPlan:
    """The plan of a run; `steps` and `seeds` None: as the kind of run has them."""
    return TablesPlan(quick, steps or (QUICK_STEPS if quick else FULL_STEPS), seeds or (1 if quick else FULL_SEEDS), SIZE)
