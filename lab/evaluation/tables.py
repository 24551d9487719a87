"""The figures of `aif eval tables`, made of cells: each model's measures, and what each part of AIF contributes.

A user's value for a model is the mean over the model's seeds. Intervals are 95% bootstrap intervals over users; all figures use the same resamples, so
differences between models are paired. The variation between seeds is not in them; `gauc_seed_sd` shows it. All models have the same W_hash (cells.py), so
what another draw of it would change is in neither.

Bits of a signature. The error of a hashed similarity (Eq. 6) falls with the number of bits: sigma = sqrt(p (1 - p) / K). Here p = 1 - angle / pi is the
probability that a bit of two embeddings is equal, and so the similarity that infinitely many bits give. A small error of an input costs GAUC in proportion
to its square, so loss = a / bits. This law also covers numbers of bits that were not trained. The measured recommendation is the cautious one: it takes
the upper bounds of the measured losses. All losses are in points of GAUC (0.01 = 1 point).

Arrays: U users, R resamples, P pairs, H hashes, M width, K bits.  Source: AIF, sections 4.2, 5.1, 5.2 and 5.2.3, Table 3; Charikar 2002.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from infra.figures import Figures, Interval
from lab.evaluation.cells import Cell
from lab.evaluation.family.variant import ABLATIONS, AIF, BASE, BITS, EXACT, FULL, MORE_CANDIDATES, TABLE_3, TEACHER
from lab.figures.declared import read_bench
from schemas.ids import Id
from schemas.model.lsh import POPCOUNT_256, encode_signatures, make_w_hash
from streams.training.bootstrap import Bootstrap
from streams.training.measures import UserValues

TABLES = read_bench("eval tables")

ALLOWED_PT = (0.1, 0.25, 0.5, 1.0)
_PAIRS, _HASHES = 400, 60
_COSINE = "mm_din_simtier"
MEASURES = ("gauc", "gauc_new", "gauc_buy", "gauc_buy_by_click", "hr_at_100", "ctr", "rpm")
ByModel = Mapping[str, Mapping[str, UserValues]]


def average_seeds(cells: Sequence[Cell]) -> dict[str, dict[str, UserValues]]:
    """Measures by model and name; a user's value is the mean over the model's seeds. A user's weight does not depend on the seed."""
    of_model: dict[str, list[Cell]] = {}
    for cell in cells:
        of_model.setdefault(cell.model, []).append(cell)
    return {
        model: {
            name: UserValues(np.mean([c.users[name].value_U for c in found], axis=0), of.weight_U) for name, of in found[0].users.items()
        }
        for model, found in of_model.items()
    }


def add_world_figures(figures: Figures, cells: Sequence[Cell], users: Sequence[Id]) -> ByModel:
    """Adds all figures of the world and returns the measures by model. A model without cells gets no figure. `users`: the ids [U] of the measured."""
    models = average_seeds(cells)
    if BASE.name in models:  # "Base with +15% candidates" is Base itself, ranking more candidates
        base = models[BASE.name]
        models[MORE_CANDIDATES.name] = {name: base[f"{name}_more"] for name in ("ctr", "rpm")}
    bootstrap = Bootstrap(len(next(iter(models.values()))["ctr"].value_U))
    for model, measures in models.items():
        for name in MEASURES:
            if name in measures:
                figures.add_interval(f"world.{model}.{name}", bootstrap.interval(measures[name]))
    _add_table_2(figures, models, bootstrap, users)
    _add_table_3(figures, models, bootstrap)
    _add_bits(figures, models, bootstrap)
    _add_teacher(figures, models, bootstrap)
    _add_numbers(figures, cells)
    return models


def _add_table_2(figures: Figures, models: ByModel, bootstrap: Bootstrap, users: Sequence[Id]) -> None:
    if {BASE.name, FULL.name, AIF.name} <= models.keys():
        base, full, aif = (models[v.name]["gauc"] for v in (BASE, FULL, AIF))
        figures.add_interval("gauc_gap_pt", bootstrap.interval_of(lambda mean: 100 * (mean(full) - mean(base))))
        share = bootstrap.interval_of(lambda mean: (mean(aif) - mean(base)) / (mean(full) - mean(base)))
        figures.add_interval("aif_share_of_gap", share)
    for ablation in ABLATIONS:
        if (lost := _points_lost(bootstrap, models, AIF.name, ablation.name)) is not None:
            figures.add_interval(f"world.{ablation.name}.gauc_drop_pt", lost)
    for model, measures in models.items():
        if model != BASE.name and BASE.name in models:
            for name in ("ctr", "rpm"):
                ours, theirs = measures[name], models[BASE.name][name]
                figures.add_interval(f"world.{model}.{name}_lift_pct", _lift(bootstrap, ours, theirs))
                if model == AIF.name:
                    figures.add_interval(f"world.ab.{model}.{name}_lift_pct", _split_lift(bootstrap, ours, theirs, users))


def _add_table_3(figures: Figures, models: ByModel, bootstrap: Bootstrap) -> None:
    for variant in TABLE_3[1:]:
        if (found := _points_lost(bootstrap, models, EXACT.name, variant.name)) is not None:
            figures.add_interval(f"world.{variant.name}.gauc_loss_pt", found)
    for form, reference, model in (("lsh", EXACT.name, "lsh_256"), ("moments", "mm_din_simtier", "mm_din_moments")):
        found = _points_lost(bootstrap, models, reference, model)
        if found is None:
            figures.add(f"{form}_gauc_loss_pt", None)
        else:
            figures.add_interval(f"{form}_gauc_loss_pt", found)


def _add_bits(figures: Figures, models: ByModel, bootstrap: Bootstrap) -> None:
    """Adds the loss by hashing alone: against the same modules over exact cosines."""
    losses = {bits: loss for bits in BITS if (loss := _points_lost(bootstrap, models, _COSINE, f"lsh_{bits}")) is not None}
    for bits, loss in losses.items():
        figures.add_interval(f"hash_loss_pt_{bits}", loss)
    if len(losses) > 1:
        law_pt = fit_law({bits: loss.value for bits, loss in losses.items()})
        figures.add("hash_law_pt", law_pt)
        for allowed in ALLOWED_PT:
            figures.add(f"hash_bits_for_{allowed}", recommend_bits(losses, allowed))
            figures.add(f"hash_bits_for_{allowed}_by_law", bits_by_law(law_pt, allowed))


def _add_teacher(figures: Figures, models: ByModel, bootstrap: Bootstrap) -> None:
    """Adds the teacher's margin over AIF, which learns its order, and over AIF with drawn clicks alone, as the teacher has them; what COPR is worth."""
    for name, student in (("teacher", AIF.name), ("teacher_click", "aif_click")):
        if (found := _points_lost(bootstrap, models, TEACHER.name, student)) is not None:
            figures.add_interval(f"{name}_margin_pt", found)
    for name, measure in (("gauc", "gauc"), ("hr", "hr_at_100")):
        if (found := _points_lost(bootstrap, models, AIF.name, "aif_click", measure)) is not None:
            figures.add_interval(f"copr_{name}_gain_pt", found)


def _points_lost(bootstrap: Bootstrap, models: ByModel, reference: str, model: str, measure: str = "gauc") -> Interval | None:
    """Points of a measure by which a model is below a reference; None without one of them."""
    if not {reference, model} <= models.keys():
        return None
    theirs, ours = models[reference][measure], models[model][measure]
    return bootstrap.interval_of(lambda mean: 100 * (mean(theirs) - mean(ours)))


def _lift(bootstrap: Bootstrap, ours: UserValues, theirs: UserValues) -> Interval:
    return bootstrap.interval_of(lambda mean: 100 * (mean(ours) / mean(theirs) - 1))


def _split_lift(bootstrap: Bootstrap, ours: UserValues, theirs: UserValues, users: Sequence[Id]) -> Interval:
    """The lift in an A/B test, where each user is shown one of the two models: the treatment where a hash of the user's id is odd."""
    treated_U = np.array([xxhash.xxh64_intdigest(str(user).encode()) % 2 for user in users], float)
    treatment, control = UserValues(ours.value_U, treated_U), UserValues(theirs.value_U, 1 - treated_U)
    return _lift(bootstrap, treatment, control)


def _add_numbers(figures: Figures, cells: Sequence[Cell]) -> None:
    """Adds each model's seconds of fit and of processor, parameters and calibration, as means over its seeds, and the spread of GAUC and HR over them."""
    for model in dict.fromkeys(cell.model for cell in cells):
        of_model = [cell for cell in cells if cell.model == model]
        for name in ("fit_s", "cpu_s", "parameters", "calibration"):
            figures.add(f"world.{model}.{name}", float(np.mean([cell.numbers[name] for cell in of_model])))
        figures.add(f"world.{model}.seeds", len(of_model))
        for name in ("gauc", "hr_at_100") if len(of_model) > 1 else ():
            figures.add(f"world.{model}.{name}_seed_sd", float(np.std([cell.users[name].mean() for cell in of_model], ddof=1)))


# --- bits of a signature --------------------------------------------------------------------------------------------------


def pair_similarities(first_PM: np.ndarray, second_PM: np.ndarray, bits: int) -> np.ndarray:
    """The similarity of each pair (Eq. 6) under each of H independent W_hash, float64 [H, P]."""
    found = []
    for seed in range(_HASHES):
        w_hash_KM = make_w_hash(1_000 + seed, bits, first_PM.shape[1])
        differ_PW = encode_signatures(first_PM, w_hash_KM) ^ encode_signatures(second_PM, w_hash_KM)
        found.append(1 - POPCOUNT_256[differ_PW].sum(axis=1, dtype=np.int64) / bits)
    return np.array(found)


def sigma_ratio(embeddings_RM: np.ndarray, bits: int) -> float:
    """Measured spread over the spread by the law, both as root mean square over random pairs of rows; 1 if the law holds."""
    rng = np.random.default_rng(0)
    first_P, second_P = rng.integers(0, len(embeddings_RM), (2, _PAIRS))
    first_PM, second_PM = embeddings_RM[first_P], embeddings_RM[second_P]
    norms_P = np.linalg.norm(first_PM, axis=1) * np.linalg.norm(second_PM, axis=1)
    cosine_P = (first_PM * second_PM).sum(axis=1) / np.maximum(norms_P, 1e-12)
    p_P = 1 - np.arccos(cosine_P.clip(-1, 1)) / np.pi
    similarity_HP = pair_similarities(first_PM, second_PM, bits)
    measured, lawful = ((similarity_HP - p_P) ** 2).mean(), (p_P * (1 - p_P) / bits).mean()
    return float(np.sqrt(measured / lawful))


def fit_law(losses_pt: Mapping[int, float]) -> float:
    """The a of loss = a / bits, fitted by least squares to losses by bits; in points times bits, at least 0."""
    return max(0.0, sum(loss / bits for bits, loss in losses_pt.items()) / sum(1 / bits**2 for bits in losses_pt))


def recommend_bits(losses: Mapping[int, Interval], allowed_pt: float) -> int | None:
    """The smallest measured number of bits whose loss is at most `allowed_pt` by its upper bound, as is that of every larger number; None if no
    number is."""
    found = None
    for bits in sorted(losses, reverse=True):
        if losses[bits].high > allowed_pt:
            break
        found = bits
    return found


def bits_by_law(law_pt: float, allowed_pt: float) -> int:
    """The smallest multiple of 8, at least 8, at which `law_pt` / bits is at most `allowed_pt`."""
    return max(8, 8 * math.ceil(law_pt / allowed_pt / 8))
