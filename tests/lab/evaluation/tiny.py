"""A world small enough to train a model in a second, and the plan of its cells."""

from lab.catalogues.world import WorldSize
from lab.evaluation.cells import CellPlan
from lab.evaluation.family.variant import AIF, Variant
from schemas.train_choices import TrainChoices

SIZE = WorldSize(items=300, users=40, held_out=12, requests_per_user=2, shown_per_request=8)
SPEC = (("width", 8), ("bridges", 2), ("bridge_width", 8), ("hash_bits", 64), ("embedding_width", 4), ("head_hidden", (16,)))


def tiny_plan(variant: Variant = AIF, seed: int = 0, steps: int = 4) -> CellPlan:
    return CellPlan(variant, SIZE, SPEC, TrainChoices(steps=steps, seed=seed, copr=0.0, soft_labels=True))
