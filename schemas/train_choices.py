"""How a model is trained: the section [train] of a model's file or of a mapping, which a checkpoint's card repeats.

The command line overrides the file, and the file the defaults. Unknown names are refused.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.errors import Misconfigured, suggest

STARTS = ("random", "similarity")
ALL, LIKENESS = "all", "likeness"
PASSES_STEPS_MIN, PASSES_STEPS_MAX = 100, 2_000
_BATCH_REQUESTS_MAX = 4_096
_HALF_LIFE_DAYS_MIN = 0.01
_FITS_MAX = 100
_PASSES_MAX = 100
_NEGATIVES_MAX = 100
_LOSSES = ("copr", "click", "softmax", "outcomes", "shown")
# The choices that a checkpoint's card gives to a training that continues from it; not the rate, which may be a follower's.
WHAT_IS_LEARNT = (*_LOSSES, "soft_labels", "calibrated", "learns")


@dataclass(frozen=True, slots=True)
class TrainChoices:
    """How a model is trained.
    The limit of a fit is `steps`, else `passes`, else `seconds`. A loss of weight 0 is left out.

        passes          how often each request is learnt, within PASSES_STEPS_MIN and PASSES_STEPS_MAX steps: with few requests, the steps that many need
                        would learn them by heart (docs/EXPERIMENTS.md)
        start           how weights begin: random, or so that an item is its embedding and a user the mean of theirs (similarity)
        learns          all; or likeness: the head alone, which reads how alike a candidate is to the history, and its `realtime` features. Few requests teach
                        nothing else that holds later (streams/training/likeness.py). It needs the start from similarity
        hold            share of a fit at the highest learning rate, before it falls. A fit from random weights finds the use of its bridges late, so it
                        needs one; what starts from similarity, or continues from trained weights, does not (docs/EXPERIMENTS.md)
        fits            number of fits from the same weights, each with batches of its own; the mean of their weights is the model
        half_life_days  towards the end of a fit, a request that is older than the newest by this time is drawn half as often; 0 = all alike
        ranker_steps    steps of the model's ranker, if it has one, after the fits and with the same losses
        copr, click     order by the ranking teacher's eCPM (Eq. 10); cross-entropy of the click
        softmax         each positive against the negatives of its request; suits positives with sampled negatives
        outcomes        cross-entropy of each other task
        shown           of the task `shown`, where the model has one: shown items against `negatives` items for each, drawn uniformly from those of the
                        catalogue that exist at the request's time. The other losses read shown items only
        soft_labels     the click's target is the teacher's probability, where there is a teacher
        calibrated      COPR leaves the level of the click's probabilities to `click`. They are then right within some percent, but fewer of the best items
                        are found (docs/EXPERIMENTS.md)
    """

    learning_rate: float = 4e-3
    batch_requests: int = 32
    steps: int = 0
    passes: int = 0
    seconds: float = 20.0
    fits: int = 1
    half_life_days: float = 0.0
    seed: int = 0
    ranker_steps: int = 1_000
    start: str = "random"
    learns: str = ALL
    hold: float = 0.6
    copr: float = 0.3
    click: float = 1.0
    softmax: float = 0.0
    outcomes: float = 1.0
    shown: float = 0.5
    negatives: int = 4
    soft_labels: bool = False
    calibrated: bool = False

    def __post_init__(self) -> None:
        _require("learning_rate", self.learning_rate, 0 < self.learning_rate <= 1, "above 0, at most 1")
        _require("batch_requests", self.batch_requests, 1 <= self.batch_requests <= _BATCH_REQUESTS_MAX, f"1 to {_BATCH_REQUESTS_MAX}")
        _require("steps", self.steps, self.steps >= 0, "from 0 (0: `passes` or `seconds` is the limit)")
        _require("passes", self.passes, 0 <= self.passes <= _PASSES_MAX, f"0 to {_PASSES_MAX} (0: `seconds` is the limit)")
        _require("negatives", self.negatives, 1 <= self.negatives <= _NEGATIVES_MAX, f"1 to {_NEGATIVES_MAX}")
        _require("ranker_steps", self.ranker_steps, self.ranker_steps >= 1, "1 or more")
        _require("seconds", self.seconds, self.seconds > 0, "above 0")
        _require("fits", self.fits, 1 <= self.fits <= _FITS_MAX, f"1 to {_FITS_MAX}")
        half_life = self.half_life_days
        _require("half_life_days", half_life, half_life == 0 or _HALF_LIFE_DAYS_MIN <= half_life < math.inf, "0, or 0.01 or more")
        _require("start", self.start, self.start in STARTS, f"one of {', '.join(STARTS)}")
        _require("learns", self.learns, self.learns in (ALL, LIKENESS), f"{ALL} or {LIKENESS}")
        _require("hold", self.hold, 0 <= self.hold < 1, "from 0, below 1")
        weights = [getattr(self, name) for name in _LOSSES]
        for name, weight in zip(_LOSSES, weights, strict=True):
            _require(name, weight, 0 <= weight < math.inf, "a weight from 0")
        _require("click", self.click, any(weights[:3]), "a weight above 0 where copr and softmax are 0: nothing would be learnt")

    def replaced(self, given: Mapping[str, Any]) -> "TrainChoices":
        """These with some others; a given choice of the fit's end replaces the present one. Raises Misconfigured (`bad_train_choice`), which names the
        choice, and the nearest name for an unknown one."""
        known = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name, value in given.items():
            if name not in known:
                raise _unknown(name, known)
            if type(value) is not type(known[name]) and not (type(value) is int and isinstance(known[name], float)):
                raise Misconfigured("bad_train_choice", f"{name} = {value!r}, expected a value like {known[name]!r}")
        plain: dict[str, Any] = {name: float(value) if isinstance(known[name], float) else value for name, value in given.items()}
        if given.keys() & {"passes", "seconds"}:
            plain.setdefault("steps", 0)
        if "seconds" in given:
            plain.setdefault("passes", 0)
        return dataclasses.replace(self, **plain)

    def with_steps(self, requests: int) -> "TrainChoices":
        """These with the steps that `passes` over so many requests come to, where `passes` ends the fit."""
        if self.steps or not self.passes:
            return self
        steps = self.passes * requests // self.batch_requests
        return dataclasses.replace(self, steps=min(max(steps, PASSES_STEPS_MIN), PASSES_STEPS_MAX))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint's card."""
        return dataclasses.asdict(self)


def decode_assignments(texts: list[str]) -> dict[str, Any]:
    """`name=value` of a command line as plain values. Raises Misconfigured (`bad_train_choice`)."""
    known = {f.name: f.type for f in dataclasses.fields(TrainChoices)}
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign:
            raise Misconfigured("bad_train_choice", f"{text!r} does not read; expected name=value, like learning_rate=0.002")
        if name not in known:
            raise _unknown(name, known)
        found[name] = _decode_value(name, value, known[name])
    return found


def _unknown(name: str, known: Mapping[str, Any]) -> Misconfigured:
    remedy = "it belongs in [model], because serving reads as many" if name == "behaviours_max" else suggest(name, known)
    return Misconfigured("bad_train_choice", f"{name} is no choice of [train]; {remedy}")


def _decode_value(name: str, text: str, kind: Any) -> Any:
    flags = {"true": True, "false": False}
    try:
        return flags[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise Misconfigured("bad_train_choice", f"{name} = {text!r}, expected {kind.__name__}") from error


def _require(name: str, value: object, fits: bool, expected: str) -> None:
    if not fits:
        raise Misconfigured("bad_train_choice", f"{name} = {value!r}, expected {expected}")


# For catalogues and histories from files: positives with sampled negatives, ranked by how likely they are.
FOR_MAPPED_DATA = TrainChoices(
    passes=2, learning_rate=2e-3, batch_requests=16, start="similarity", hold=0.0, copr=0.0, click=0.0, softmax=1.0
)

# For impressions from files: outcomes of shown items as probabilities, and the chance of being shown at all.
FOR_SHOWN = TrainChoices(passes=3, learning_rate=2e-3, start="similarity", hold=0.0, copr=0.0, outcomes=0.5)
