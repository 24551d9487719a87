"""Everything that fixes a model's shape and meaning, as data: it travels in the checkpoint and nothing of it is a setting.

The paper overloads d and d'. Here: `width` (async vector, its d), `bridge_width` (its d' in Algorithm 1), `hash_bits` (its d' in Eq. 5),
`schema.mm_width` (its d in Eq. 5). No torch here; torch-free readers (nearline core, loaders) take row shapes from this file.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.errors import Misconfigured
from schemas.features import FeatureSchema, decode_feature_schema
from schemas.limits import (
    BEHAVIOURS_PER_USER_MAX,
    BRIDGES_MAX,
    HASH_BITS_MAX,
    HASH_BUCKETS_MAX,
    HIDDEN_LAYERS_MAX,
    HIDDEN_MAX,
    RECENCY_SCALES_MAX,
    TASKS_MAX,
    TIERS_MAX,
    WIDTH_MAX,
)
from schemas.model.ranker.spec import RankerSpec
from schemas.model.score import BID, SHOWN, Terms, decode_rank_by

# Least and most of each size: others make no network, or one that no machine holds.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("width", "bridge_width", "embedding_width"), (1, WIDTH_MAX)),
    "bridges": (1, BRIDGES_MAX),
    "hash_bits": (8, HASH_BITS_MAX),
    "item_id_buckets": (0, HASH_BUCKETS_MAX),
    **dict.fromkeys(("item_hidden", "user_hidden", "bridge_hidden", "head_hidden"), (1, HIDDEN_MAX)),
    **dict.fromkeys(
        ("behaviours_max", "attended_behaviours", "simtier_behaviours", "sim_behaviours", "recency"), (1, BEHAVIOURS_PER_USER_MAX)
    ),
}
# Fields that older checkpoints lack, and what those do: not in the JSON where they are so.
_LATER: Mapping[str, Any] = {"recency": (), "behaviours_max": BEHAVIOURS_PER_USER_MAX, "ranker": None}


@dataclass(frozen=True)
class ModelSpec:
    """Sizes and choices of one model.
    Raises Misconfigured (`bad_model_spec`) for one that makes no network.

        width               D, async vector of an item (Eq. 4), and each of a user's three (profile, Eq. 2, Eq. 3)
        bridges             n, bridge embeddings (Algorithm 1)
        bridge_width        D', width of each of the n user vectors V (Algorithm 1, line 2)
        hash_bits           K, bits of a signature (Eq. 5); a multiple of 8
        embedding_width     width of a categorical or bag feature's embedding
        item_id_buckets     rows of the behaviour item-id table, of which hashed ids take all but the first; 0 = no trainable ids (they overfit on small data)
        item_hidden, user_hidden, bridge_hidden, head_hidden   widths of hidden layers
        behaviours_max      number of the latest behaviours of a user that the model reads, in training as in serving
        attended_behaviours / simtier_behaviours / sim_behaviours   how many of the latest behaviours Eq. 2-3, SimTier, SIM-hard (per category) see
        tier_edges          lower edges of the N - 1 upper tiers in LSH similarity (Eq. 9), ascending; tier 0 is below the first
        din                 "centred" = sum((2 sim - 1) V) / l; "raw" = the sum of Eq. 8 as printed
        rank_by             "ecpm" = y * bid; "click" = y; or a product of tasks and the bid, "click * buy^0.5 * bid" (score.py)
        tasks               names of the head's outputs; the first is the click, the others are outcomes of an impression, or `shown`: whether an item of the
                            catalogue is shown at all
        recency             scales, in behaviours, at which Eq. 1 sees how many newer behaviours the user has (behaviour_codes.py); () = it does not
        ranker              sizes of the ranker that orders AIF's answer; None = the checkpoint has none
    """

    schema: FeatureSchema
    width: int = 32
    bridges: int = 8
    bridge_width: int = 32
    hash_bits: int = 128
    embedding_width: int = 8
    item_id_buckets: int = 0
    item_hidden: tuple[int, ...] = (64,)
    user_hidden: tuple[int, ...] = (64,)
    bridge_hidden: tuple[int, ...] = (64,)
    head_hidden: tuple[int, ...] = (128, 64)
    behaviours_max: int = 1_000
    attended_behaviours: int = 256
    simtier_behaviours: int = 1_000
    sim_behaviours: int = 50
    tier_edges: tuple[float, ...] = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0)
    din: str = "centred"
    rank_by: str = "ecpm"
    tasks: tuple[str, ...] = ("click",)
    recency: tuple[int, ...] = ()
    ranker: RankerSpec | None = None

    def __post_init__(self) -> None:
        def require(condition: bool, message: str) -> None:
            if not condition:
                raise Misconfigured("bad_model_spec", message)

        for name, (least, most) in _BOUNDS.items():
            many = name.endswith("_hidden") or name == "recency"
            listed = getattr(self, name) if many else (getattr(self, name),)
            bounds = f"{name} = {', '.join(map(str, listed))}, expected {'each ' if len(listed) > 1 else ''}{least} to {most:,}, whole"
            require(all(type(number) is int and least <= number <= most for number in listed), bounds)
            layers = f"{name} has {len(listed)} layers, expected at most {HIDDEN_LAYERS_MAX}"
            require(name == "recency" or len(listed) <= HIDDEN_LAYERS_MAX, layers)
        require(self.hash_bits % 8 == 0, f"hash_bits = {self.hash_bits}, expected a multiple of 8")
        require(self.item_id_buckets != 1, "item_id_buckets = 1, expected 0 or at least 2: row 0 is no item's")
        tiers = f"tier_edges = {', '.join(map(str, self.tier_edges))}, expected 1 to {TIERS_MAX - 1} ascending numbers from 0 to 1"
        shares = all(isinstance(edge, int | float) and 0 <= edge <= 1 for edge in self.tier_edges)
        require(shares and _ascend(self.tier_edges) and 1 <= len(self.tier_edges) < TIERS_MAX, tiers)
        require(1 <= len(self.tasks) <= TASKS_MAX, f"1 to {TASKS_MAX} tasks, got {self.tasks}")
        require(self.din in ("centred", "raw"), f"din = {self.din!r}, expected centred or raw")
        require(len(set(self.tasks)) == len(self.tasks) and BID not in self.tasks, f"tasks need names of their own, got {self.tasks}")
        scales = f"recency = {self.recency}, expected at most {RECENCY_SCALES_MAX} ascending scales"
        require(_ascend(self.recency) and len(self.recency) <= RECENCY_SCALES_MAX, scales)
        self._check_rank_by(require)

    def _check_rank_by(self, require: Callable[[bool, str], None]) -> None:
        try:
            names = [name for name, _ in self.rank_terms]
        except ValueError as error:
            raise Misconfigured("bad_model_spec", f"rank_by = {self.rank_by!r}: {error}") from error
        unknown = sorted(set(names) - {BID, *self.tasks})
        require(not unknown, f"rank_by = {self.rank_by!r}: {unknown} are no tasks of the model, which has {self.tasks}")
        require(names != [BID], "rank_by = bid ranks without the model; name a task")
        require(BID not in names or self.schema.bid is not None, f"rank_by = {self.rank_by} needs a feature schema with a bid")

    @property
    def rank_terms(self) -> Terms:
        """The factors of the score; `ecpm` and `click` mean the first task, whatever its name."""
        terms = decode_rank_by(self.rank_by)
        return tuple((self.tasks[0] if self.rank_by in ("ecpm", "click") and name != BID else name, e) for name, e in terms)

    @property
    def shown_task(self) -> int | None:
        """The place of the task `shown` among the tasks after the click; None without one."""
        return self.tasks.index(SHOWN) - 1 if SHOWN in self.tasks[1:] else None

    @property
    def signature_bytes(self) -> int:
        """W, bytes of a packed signature; 0 without a multimodal embedding."""
        return self.hash_bits // 8 if self.schema.multimodal else 0

    @property
    def tiers(self) -> int:
        """Number of tiers of SimTier (Eq. 9)."""
        return len(self.tier_edges) + 1

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the inverse of `decode_model_spec`. A field of `_LATER` is left out where it is as older
        models have it, so that these keep the fingerprint they had before the field existed."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"schema": self.schema.to_dict()}
        plain["ranker"] = self.ranker and dataclasses.asdict(self.ranker)
        return {name: value for name, value in plain.items() if name not in _LATER or value != _LATER[name]}

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change whenever a size, a choice or the feature schema changes."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def _ascend(numbers: Sequence[float]) -> bool:
    return list(numbers) == sorted(set(numbers))


def decode_model_spec(raw: Mapping[str, Any]) -> ModelSpec:
    """A spec from plain values. Raises Misconfigured (`bad_model_spec`, `bad_feature_schema`)."""
    fields: dict[str, Any] = {**_LATER} | {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k != "schema"}
    try:
        fields["ranker"] = RankerSpec(**fields["ranker"]) if fields["ranker"] else None
        return ModelSpec(schema=decode_feature_schema(raw["schema"]), **fields)
    except (TypeError, KeyError) as error:
        raise Misconfigured("bad_model_spec", f"the model spec does not read: {error}") from error
