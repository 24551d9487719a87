"""A killed trainer continues exactly: the same weights as one that was not killed, bit for bit."""

import dataclasses
import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from schemas.errors import Corrupted, Unavailable
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.impressions import TrainingSet
from streams.training.trainer import VECTORS_EVERY, TrainReport, fit
from streams.training.trainer_state import StateFile, TrainerState, decode_state, encode_state
from tests.streams.training.test_trainer import network_of, taste_world

OPTIONS = TrainChoices(steps=50, batch_requests=8, seed=3)
OF_THREE_FITS = dataclasses.replace(OPTIONS, fits=3)
Undisturbed = tuple[TrainReport, dict[str, torch.Tensor]]


class Killed(Exception):
    """Stands for SIGKILL: nothing after it runs."""


def killed_after(data: TrainingSet, steps: int, states: StateFile, options: TrainChoices = OPTIONS) -> None:
    done = 0

    def count(_: float) -> None:
        nonlocal done
        done += 1
        if done == steps:
            raise Killed

    with pytest.raises(Killed):
        fit(network_of(data, seed=9), data, options, count, states)


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return taste_world()


@pytest.fixture(scope="module")
def undisturbed(data: TrainingSet) -> Undisturbed:
    """The report of a fit that is not killed, and its weights."""
    return fit_undisturbed(data, OPTIONS)


@pytest.fixture(scope="module")
def undisturbed_mean(data: TrainingSet) -> Undisturbed:
    """The same of the mean of three fits."""
    return fit_undisturbed(data, OF_THREE_FITS)


def fit_undisturbed(data: TrainingSet, options: TrainChoices) -> Undisturbed:
    network = network_of(data, seed=9)
    report = fit(network, data, options)
    return report, network.state_dict()


def same_weights(network: AifNetwork, expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(expected.values(), network.state_dict().values(), strict=True))


@pytest.mark.parametrize("steps", [19, 21, 45])
def test_a_killed_fit_that_goes_on_ends_with_the_same_weights_bit_for_bit(
    data: TrainingSet, undisturbed: Undisturbed, tmp_path: Path, steps: int
) -> None:
    expected, weights = undisturbed
    states = StateFile(tmp_path / "state", every_steps=VECTORS_EVERY)
    killed_after(data, steps, states)
    assert states.path.exists() == (steps > VECTORS_EVERY)
    again = network_of(data, seed=9 if steps < VECTORS_EVERY else 1)  # its first weights do not matter once there is a state
    found = fit(again, data, OPTIONS, states=states)
    assert (found.steps, found.copr, found.click) == (expected.steps, expected.copr, expected.click)
    assert same_weights(again, weights)


def test_a_fit_that_is_killed_twice_still_ends_the_same(data: TrainingSet, undisturbed: Undisturbed, tmp_path: Path) -> None:
    again = network_of(data, seed=9)
    states = StateFile(tmp_path / "state", every_steps=VECTORS_EVERY)
    killed_after(data, 25, states)
    killed_after(data, 25, states)
    fit(again, data, OPTIONS, states=states)
    assert same_weights(again, undisturbed[1])


def test_keeping_states_changes_nothing(data: TrainingSet, undisturbed: Undisturbed, tmp_path: Path) -> None:
    kept = network_of(data, seed=9)
    fit(kept, data, OPTIONS, states=StateFile(tmp_path / "state", every_steps=VECTORS_EVERY))
    assert same_weights(kept, undisturbed[1])


@pytest.mark.parametrize("steps", [45, 75, 115])
def test_a_mean_of_fits_that_is_killed_in_any_of_them_ends_the_same(
    data: TrainingSet, undisturbed_mean: Undisturbed, tmp_path: Path, steps: int
) -> None:
    expected, weights = undisturbed_mean
    states = StateFile(tmp_path / "state", every_steps=VECTORS_EVERY)
    killed_after(data, steps, states, OF_THREE_FITS)
    again = network_of(data, seed=1)
    found = fit(again, data, OF_THREE_FITS, states=states)
    assert (found.steps, found.copr, found.click) == (expected.steps, expected.copr, expected.click) and found.steps == 150
    assert same_weights(again, weights)


def state() -> TrainerState:
    generator = np.random.default_rng(5).bit_generator.state
    moments = {0: {"step": torch.tensor(4.0), "exp_avg": torch.ones(2)}}
    return TrainerState(4, {"a.b": torch.arange(3.0)}, moments, generator, {"offsets": {"t": {"0": 7}}}, np.ones((4, 2)))


def test_a_state_reads_back_as_it_was() -> None:
    found = decode_state(encode_state(state()))
    assert (found.step, found.generator, found.about) == (4, state().generator, state().about)
    assert torch.equal(found.weights["a.b"], torch.arange(3.0)) and torch.equal(found.moments[0]["exp_avg"], torch.ones(2))
    assert np.array_equal(found.losses, np.ones((4, 2)))


def test_a_state_of_before_there_was_a_digest_still_reads() -> None:
    assert decode_state(encode_state(state())[:-32]).step == 4


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.9, 0.99])
def test_a_flipped_bit_is_refused_wherever_it_is(at: float, tmp_path: Path) -> None:
    data = bytearray(encode_state(state()))
    data[int(at * len(data))] ^= 4
    (tmp_path / "my.state").write_bytes(data)
    with pytest.raises(Corrupted, match=r"bad_trainer_state.*my\.state is damaged"):
        StateFile(tmp_path / "my.state").read()


def test_a_whole_file_that_is_no_state_is_refused_by_its_name(tmp_path: Path) -> None:
    odd = dataclasses.replace(state(), moments={"first": {"step": torch.tensor(4.0)}})  # type: ignore[dict-item]
    (tmp_path / "my.state").write_bytes(encode_state(odd))
    with pytest.raises(Corrupted, match=r"bad_trainer_state.*my\.state is damaged"):
        StateFile(tmp_path / "my.state").read()


def test_a_full_disk_is_said_and_leaves_the_last_state_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = StateFile(tmp_path / "state")
    states.write(state())
    (tmp_path / ".state.tmp").write_bytes(b"what a killed trainer left")
    states.write(state())
    before = states.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match=r"state_not_kept.*No space left.*resumes from it"):
        states.write(state())
    assert states.path.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda _: b"", lambda b: b.replace(b"aif-trainer", b"aif-tr@iner")])
def test_a_damaged_state_is_refused(damage: object) -> None:
    with pytest.raises(Corrupted, match="bad_trainer_state"):
        decode_state(damage(encode_state(state())))  # type: ignore[operator]
