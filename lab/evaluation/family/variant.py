"""The models of the paper's Tables 2 and 3 and of its Figure 6, as configurations of one family of models.

Invariant: a variant's fields determine its model. A cell's file is found by these fields (cells.py), so a change of the model that does
not change a field must change `FORM` there.

    parts      async      Eq. 1-4: attention over behaviours, and the rich features that only asynchronous inference can afford
               bea        Algorithm 1
               long_term  DIN and SimTier over the whole history (Eq. 7-9)
               sim        the pre-cached sub-sequence of the candidate's category (section 3.3)
    trunk      split      the head that AIF serves, its first layer exact to split
               cold       COLD: fields weighed by squeeze-and-excitation, then seven layers; sequential
    cross      bridges    Algorithm 1 with n bridges
               full       Full-Cross: the candidates are the bridges
    din        lsh | mm | id      similarity of Eq. 8: of signatures, of multimodal embeddings (factored too), or attention of learnt vectors
    tiers      lsh | mm | clusters        Eq. 9 over signatures, over embeddings, or from counts and means of clusters of the embeddings
    sizes      fields of the ModelSpec in which the variant differs from its family

Source: AIF, sections 5.1-5.2, Tables 2 and 3, Figure 6; COLD (arXiv 2007.16122).
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["async", "bea", "long_term", "sim"]
PARTS: tuple[Part, ...] = ("async", "bea", "long_term", "sim")


@dataclass(frozen=True)
class Variant:
    """One model of the family. `hidden_scale` multiplies the widths of the trunk's hidden layers."""

    name: str
    title: str
    parts: tuple[Part, ...] = PARTS
    trunk: Literal["split", "cold"] = "split"
    cross: Literal["bridges", "full"] = "bridges"
    din: Literal["lsh", "mm", "id"] = "lsh"
    tiers: Literal["lsh", "mm", "clusters"] = "lsh"
    sizes: tuple[tuple[str, Any], ...] = ()
    hidden_scale: float = 1.0

    def has(self, part: Part) -> bool:
        """Whether the model has a part."""
        return part in self.parts

    @property
    def is_served(self) -> bool:
        """Whether this is the network that serving runs: all parts, with the split trunk, bridges and signatures."""
        served = (PARTS, "split", "bridges", "lsh", "lsh", 1.0)
        return (self.parts, self.trunk, self.cross, self.din, self.tiers, self.hidden_scale) == served


def _without(part: Part, title: str) -> Variant:
    return Variant(f"aif_without_{part}", f"AIF w/o {title}", tuple(p for p in PARTS if p != part))


BASE = Variant("base", "Base", (), trunk="cold")
FULL = Variant("full", "Base(full features)", trunk="cold", cross="full", din="id", tiers="mm")
AIF = Variant("aif", "AIF")
ABLATIONS = (
    _without("async", "Async-Vectors"),
    _without("sim", "Pre-Caching SIM"),
    _without("bea", "BEA"),
    _without("long_term", "Long-term User Behavior"),
)
# The ranking stage behind pre-ranking, which saves no time: every candidate attends to all features of the user and to all behaviours, both modules
# use exact similarity, and vectors are twice as wide as the family's.
TEACHER = Variant(
    "teacher",
    "Ranking teacher",
    trunk="cold",
    cross="full",
    din="id",
    tiers="mm",
    sizes=(("width", 32), ("bridge_width", 32), ("attended_behaviours", 1_000), ("sim_behaviours", 1_000)),
    hidden_scale=1.5,
)
# The model of BASE itself: how many more candidates it ranks is in world_truth.py.
MORE_CANDIDATES = dataclasses.replace(BASE, name="base_15_candidates", title="Base with +15% candidates")
MORE_PARAMETERS = dataclasses.replace(BASE, name="base_15_parameters", title="Base with +15% parameters", hidden_scale=1.09)
TABLE_2 = (BASE, FULL, AIF, *ABLATIONS, MORE_CANDIDATES, MORE_PARAMETERS)

# Table 3 compares similarities. Its models have no bridges: at which step of a training these begin to contribute differs between models, and with
# them GAUC by more (1.2 points between two models of this family at 2,400 steps) than with the similarities.
_LONG_TERM: tuple[Part, ...] = ("async", "long_term", "sim")
BITS = (32, 64, 128, 256)
EXACT = Variant("din_simtier", "DIN + SimTier", _LONG_TERM, din="id", tiers="mm")
TABLE_3 = (
    EXACT,
    Variant("lsh_din_simtier", "LSH-DIN + SimTier", _LONG_TERM, din="lsh", tiers="mm"),
    Variant("din_lsh_simtier", "DIN + LSH-SimTier", _LONG_TERM, din="id", tiers="lsh"),
    Variant("mm_din_simtier", "MM-DIN + SimTier (exact factored cosine)", _LONG_TERM, din="mm", tiers="mm"),
    *(Variant(f"lsh_{bits}", f"LSH-DIN + LSH-SimTier, {bits} bits", _LONG_TERM, sizes=(("hash_bits", bits),)) for bits in BITS),
    Variant("mm_din_moments", "MM-DIN + moments", _LONG_TERM, din="mm", tiers="clusters"),
)

BRIDGE_COUNTS = (1, 2, 4, 8, 16, 32)
BRIDGES = (
    *(Variant(f"bridges_{n}", f"BEA, n = {n}", sizes=(("bridges", n),)) for n in BRIDGE_COUNTS),
    Variant("full_cross", "Full-Cross", cross="full"),
)
