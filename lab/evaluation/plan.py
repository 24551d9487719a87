"""Which cells `aif eval tables` trains: the full plan (every model, three seeds, trained to the plateau) and the quick one (few models, one seed)."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.catalogues.world import WorldSize
from lab.catalogues.world_catalogue import BUY
from lab.evaluation.cells import CellPlan
from lab.evaluation.family.variant import AIF, BRIDGES, MORE_CANDIDATES, TABLE_2, TABLE_3, TEACHER, Variant
from schemas.train_choices import TrainChoices

# The family's sizes (fields of a ModelSpec). As in the paper, attention reads a short sequence; older behaviours are read by long_term only.
SPEC: tuple[tuple[str, Any], ...] = (
    ("width", 16),
    ("bridges", 12),
    ("bridge_width", 16),
    ("hash_bits", 128),
    ("embedding_width", 8),
    ("attended_behaviours", 32),
)
# The label is the teacher's click probability, which gave the best GAUC and HR in this world (1,000 steps, width 32, default signals): GAUC .829
# and HR .735; with COPR at 0.3 added .816 and .713; with COPR and drawn clicks .816 and .714.
TRAIN = TrainChoices(learning_rate=6e-3, batch_requests=16, copr=0.0, soft_labels=True)
# The world of the tables has stronger facets than the default one (lab/catalogues/world.py), which only bridges can represent: a width of 16 is too
# narrow for a user's six facets, and there are twice as many bridges as facets. In other worlds Algorithm 1 has nothing to add.
SIGNALS = (("facet", 1.8), ("quality", 0.7))
# Everything above was chosen on the world of seed 0, so the users and items measured here are new.
WORLD_SEED = 1
SIZE = WorldSize(held_out=500)
QUICK_STEPS, FULL_STEPS, FULL_SEEDS = 2_200, 6_000, 3
_QUICK_TABLE_3 = ("din_simtier", "lsh_256", "mm_din_simtier", "mm_din_moments")


# A model, choices of its training that differ from TRAIN, and the model that teaches it (None: the world's true eCPM is the teacher's).
Lesson = tuple[Variant, Mapping[str, Any], Variant | None]


@dataclass(frozen=True)
class TablesPlan:
    """What one run trains: models with `seeds` seeds (0, 1, ...) each, all on the same world."""

    quick: bool
    steps: int
    seeds: int
    size: WorldSize

    @property
    def lessons(self) -> Sequence[Lesson]:
        """The models and their losses, the most important first. "Base with +15% candidates" is not among them: it is Base, ranking more.

        The quick plan begins with the teacher, which takes twice as long as any other: at the end it would have one core wait for it.
        """
        table_2 = tuple(v for v in TABLE_2 if v is not MORE_CANDIDATES)
        if self.quick:
            return [(v, {}, None) for v in (TEACHER, *table_2, *(v for v in TABLE_3 if v.name in _QUICK_TABLE_3))]
        return [*((v, {}, None) for v in (*table_2, *BRIDGES, *TABLE_3, TEACHER, TWO_TASKS)), *OTHER_LOSSES]

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


_CLICKS = {"soft_labels": False}  # drawn clicks alone
_COPR_CLICKS = {"copr": 0.3, "soft_labels": False}
# AIF trained with other losses, and the teacher trained on drawn clicks.
OTHER_LOSSES: Sequence[Lesson] = (
    (_renamed(AIF, "aif_copr_soft", "COPR and the true probability"), {"copr": 0.3}, None),
    (_renamed(AIF, "aif_copr_click", "COPR in the true order, and drawn clicks"), _COPR_CLICKS, None),
    (
        _renamed(AIF, "aif_copr_taught", "COPR in the order of the teacher, who learnt from drawn clicks, and drawn clicks"),
        _COPR_CLICKS,
        TEACHER,
    ),
    (_renamed(AIF, "aif_click", "drawn clicks"), _CLICKS, None),
    (_renamed(TEACHER, "teacher_click", "drawn clicks (the teacher itself)"), _CLICKS, None),
)


def plan_tables(quick: bool, steps: int | None = None, seeds: int | None = None) -> TablesPlan:
    """The quick or the full plan; `steps` and `seeds` replace its own numbers unless they are None."""
    return TablesPlan(quick, steps or (QUICK_STEPS if quick else FULL_STEPS), seeds or (1 if quick else FULL_SEEDS), SIZE)
