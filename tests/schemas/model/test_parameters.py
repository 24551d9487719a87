"""A model's arrays by name are those of the network, for every shape of schema, without building it."""

import pytest
import torch

from schemas.model.network import build_network
from schemas.model.parameters import parameter_shapes, parameters_of
from tests.schemas.model.samples import SPECS, make_network


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_names_the_arrays_of_its_network(name: str) -> None:
    network = make_network(SPECS[name])
    assert parameter_shapes(SPECS[name]) == {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}


def test_a_network_made_of_parameters_is_the_one_they_came_from() -> None:
    network = make_network(SPECS["full"])
    again = build_network(parameters_of(network))
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in network.state_dict().items())
    assert [len(again_mlp) for again_mlp in (parameters_of(again).mlp("bea.f"), parameters_of(again).mlp("bea.none"))] == [2, 0]
