"""Which cells `aif eval tables` runs: every model with every seed, to the plateau, or few models once and soon.

Here: sizes and lists only. Not here: running (runner.py), figures (tables.py).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.data.world import WorldSize
from streams.training.evaluation.cells import CellPlan
from streams.training.family.variant import AIF, BRIDGES, MORE_CANDIDATES, TABLE_2, TABLE_3, Variant
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
# What else AIF can be trained with, by the name of its cell.
OTHER_LOSSES = {
    "aif_copr_click": ("COPR (Eq. 10) and drawn clicks", LossWeights(copr=0.3, click=1.0)),
    "aif_copr_soft": ("COPR and the teacher's probability", LossWeights(copr=0.3, click=1.0, soft_labels=True)),
    "aif_click": ("drawn clicks", LossWeights(copr=0.0, click=1.0)),
}
LEARNING_RATE = 6e-3
BATCH_REQUESTS = 16
# The world of the tables: of the default one (infra/data/world.py) with more of what only bridges can tell. A width of 16 does not hold the
# six facets of a user, and bridges are about twice as many as those: otherwise Algorithm 1 has nothing to add.
SIGNALS = (("facet", 1.8), ("quality", 0.7))
_QUICK_TABLE_3 = ("din_simtier", "lsh_256", "mm_din_simtier", "mm_din_moments")


@dataclass(frozen=True)
class TablesPlan:
    """What one run trains. `seeds` are 0, 1, ...; the world is one and the same."""

    quick: bool
    steps: int
    seeds: int
    size: WorldSize

    @property
    def models(self) -> Sequence[tuple[Variant, LossWeights]]:
        """The models and their losses, the most important first. "+15% candidates" is the base model itself, asked about more."""
        table_2 = tuple(v for v in TABLE_2 if v is not MORE_CANDIDATES)
        if self.quick:
            return [(v, LOSS) for v in (*table_2, *(v for v in TABLE_3 if v.name in _QUICK_TABLE_3))]
        other = [(dataclasses.replace(AIF, name=name, title=title), loss) for name, (title, loss) in OTHER_LOSSES.items()]
        return [*((v, LOSS) for v in (*table_2, *TABLE_3, *BRIDGES)), *other]

    @property
    def cells(self) -> list[CellPlan]:
        """Every model with every seed, seed by seed, so that a run that is stopped has whole tables of the first seeds."""
        return [
            CellPlan(variant, seed, self.size, self.steps, SPEC, loss, LEARNING_RATE, BATCH_REQUESTS, SIGNALS)
            for seed in range(self.seeds)
            for variant, loss in self.models
        ]


def plan_tables(quick: bool, steps: int | None = None, seeds: int | None = None) -> TablesPlan:
    """The plan of a run; `steps` and `seeds` None: as the kind of run has them."""
    return TablesPlan(quick, steps or (2_400 if quick else 6_000), seeds or (1 if quick else 3), WorldSize())
