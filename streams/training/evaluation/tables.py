"""From cells to figures: every model's measures with intervals, what each part is worth, and the shares the goals speak of.

Here: the names of the figures and their arithmetic. Not here: text and pictures (report.py). A model's value of a user is
the mean over its seeds; intervals are over users, the same resamples for all, so differences are paired.

    world.<model>.<measure>[_low|_high]        gauc, gauc_new, hr_at_100, recall_at_100, ctr, rpm
    world.<model>.gauc_drop_pt[...]            what an ablation loses against AIF, in points
    world.<model>.gauc_loss_pt[...]            what a model of Table 3 loses against DIN + SimTier
    world.<model>.ctr_lift_pct, .rpm_lift_pct  against Base, the same users under both
    world.ab.<model>.ctr_lift_pct, ...         against Base, users split by a hash 50/50, as an A/B test sees it

Arrays: U users, R resamples.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import xxhash

from infra.bench.report import Figures
from infra.data.world_catalogue import FIRST_USER_ID
from streams.training.bootstrap import Bootstrap, Interval
from streams.training.evaluation.cells import Cell
from streams.training.family.variant import ABLATIONS, AIF, BASE, EXACT, FULL, MORE_CANDIDATES, TABLE_3
from streams.training.metrics import UserValues

MEASURES = ("gauc", "gauc_new", "hr_at_100", "recall_at_100", "ctr", "rpm")
Means = Callable[[UserValues], np.ndarray]
ByModel = Mapping[str, Mapping[str, UserValues]]


def average_seeds(cells: Sequence[Cell]) -> dict[str, dict[str, UserValues]]:
    """Measures by model; each user's value is the mean over the model's seeds (weights do not depend on the seed)."""
    of_model: dict[str, list[Cell]] = {}
    for cell in cells:
        of_model.setdefault(cell.model, []).append(cell)
    return {model: {name: _mean([c.users[name] for c in found]) for name in found[0].users} for model, found in of_model.items()}


def _mean(values: Sequence[UserValues]) -> UserValues:
    return UserValues(np.mean([v.value_U for v in values], axis=0), values[0].weight_U)


def add_world_figures(figures: Figures, cells: Sequence[Cell]) -> ByModel:
    """All figures of the world; returns the measures by model. Models that are not among the cells have no figure."""
    models = average_seeds(cells)
    if BASE.name in models:  # "+15% candidates" is the base model with more to choose from
        base = models[BASE.name]
        models[MORE_CANDIDATES.name] = {name: base[f"{name}_more"] for name in ("ctr", "rpm")}
    bootstrap = Bootstrap(len(next(iter(models.values()))["ctr"].value_U))
    for model, measures in models.items():
        for name in MEASURES:
            if name in measures:
                _add(figures, f"world.{model}.{name}", bootstrap.interval(measures[name]), "" if name != "rpm" else "per 1000")
    _add_table_2(figures, models, bootstrap)
    _add_table_3(figures, models, bootstrap)
    _add_numbers(figures, cells)
    return models


def _add_table_2(figures: Figures, models: ByModel, bootstrap: Bootstrap) -> None:
    if {BASE.name, FULL.name, AIF.name} <= models.keys():
        base, full, aif = (models[v.name]["gauc"] for v in (BASE, FULL, AIF))
        _add(figures, "gauc_gap_pt", bootstrap.interval_of(lambda mean: 100 * (mean(full) - mean(base))), "pt")
        share = bootstrap.interval_of(lambda mean: (mean(aif) - mean(base)) / (mean(full) - mean(base)))
        _add(figures, "aif_share_of_gap", share, "")
    for ablation in ABLATIONS:
        if ablation.name in models and AIF.name in models:
            lost = _points_lost(bootstrap, models[AIF.name]["gauc"], models[ablation.name]["gauc"])
            _add(figures, f"world.{ablation.name}.gauc_drop_pt", lost, "pt")
    for model, measures in models.items():
        if model != BASE.name and BASE.name in models:
            for name in ("ctr", "rpm"):
                ours, theirs = measures[name], models[BASE.name][name]
                _add(figures, f"world.{model}.{name}_lift_pct", _lift(bootstrap, ours, theirs), "%")
                if model == AIF.name:
                    _add(figures, f"world.ab.{model}.{name}_lift_pct", _split_lift(bootstrap, ours, theirs), "%")


def _add_table_3(figures: Figures, models: ByModel, bootstrap: Bootstrap) -> None:
    def lost(reference: str, model: str) -> Interval | None:
        both = reference in models and model in models
        return _points_lost(bootstrap, models[reference]["gauc"], models[model]["gauc"]) if both else None

    for variant in TABLE_3[1:]:
        if (found := lost(EXACT.name, variant.name)) is not None:
            _add(figures, f"world.{variant.name}.gauc_loss_pt", found, "pt")
    for name, reference, model in (
        ("lsh_gauc_loss_pt", EXACT.name, "lsh_256"),
        ("moments_gauc_loss_pt", "mm_din_simtier", "mm_din_moments"),
    ):
        found = lost(reference, model)
        if found is None:
            figures.add(name, None, "pt")
        else:
            _add(figures, name, found, "pt")


def _points_lost(bootstrap: Bootstrap, reference: UserValues, model: UserValues) -> Interval:
    return bootstrap.interval_of(lambda mean: 100 * (mean(reference) - mean(model)))


def _lift(bootstrap: Bootstrap, ours: UserValues, theirs: UserValues) -> Interval:
    return bootstrap.interval_of(lambda mean: 100 * (mean(ours) / mean(theirs) - 1))


def _split_lift(bootstrap: Bootstrap, ours: UserValues, theirs: UserValues) -> Interval:
    """The lift that a test sees which shows each user one of the two: treatment = odd hash of the user's id."""
    users = range(FIRST_USER_ID, FIRST_USER_ID + len(ours.value_U))
    treated_U = np.array([xxhash.xxh64_intdigest(str(user).encode()) % 2 for user in users], float)
    treatment, control = UserValues(ours.value_U, treated_U), UserValues(theirs.value_U, 1 - treated_U)
    return _lift(bootstrap, treatment, control)


def _add(figures: Figures, name: str, interval: Interval, unit: str) -> None:
    figures.add(name, interval.value, unit)
    figures.add(f"{name}_low", interval.low, unit)
    figures.add(f"{name}_high", interval.high, unit)


def _add_numbers(figures: Figures, cells: Sequence[Cell]) -> None:
    """Seconds of the fit and parameters of each model, means over its seeds."""
    for model in dict.fromkeys(cell.model for cell in cells):
        numbers = [cell.numbers for cell in cells if cell.model == model]
        for name, unit in (("fit_s", "s"), ("parameters", "count"), ("calibration", "")):
            figures.add(f"world.{model}.{name}", float(np.mean([n[name] for n in numbers])), unit)
