"""Checkpoints: what is written comes back, the same bytes each time, and every kind of bad file is refused by its own code."""

import hashlib
import json

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import RejectedInput
from schemas.limits import BEHAVIOURS_PER_USER_MAX
from schemas.model import checkpoint_file as module
from schemas.model.checkpoint import describe_checkpoint, encode_checkpoint, read_checkpoint, write_checkpoint
from schemas.model.spec import decode_model_spec
from tests.schemas.model.samples import SPECS, make_network

CARD = {"until": "2026-11-01", "gauc": 0.7}
GOOD = encode_checkpoint(make_network(SPECS["full"]), "demo", CARD)


def rebuild(change_tensors=None, change_manifest=None, fix_digest=True):
    """The good file with some tensors or manifest fields changed, and the digest made to match."""
    tensors = safetensors.numpy.load(GOOD)
    manifest = json.loads(module.decode_header(GOOD)["__metadata__"]["aif"])
    if change_tensors:
        change_tensors(tensors)
    if fix_digest:
        manifest["tensors_sha256"] = module.digest_tensors(tensors)
    if change_manifest:
        change_manifest(manifest)
    return safetensors.numpy.save(tensors, {"aif": json.dumps(manifest, sort_keys=True)})


def put(name, index, value):
    def change(tensors):
        tensors[name][index] = value

    return change


@pytest.mark.parametrize("name", SPECS)
def test_a_checkpoint_comes_back_with_every_bit(tmp_path, name):
    network = make_network(SPECS[name])
    write_checkpoint(tmp_path / "m.safetensors", network, "demo", CARD)
    sha256 = hashlib.sha256((tmp_path / "m.safetensors").read_bytes()).hexdigest()
    found = read_checkpoint(tmp_path / "m.safetensors", sha256, SPECS[name].schema.fingerprint)
    assert (found.info.sha256, found.info.model_id, found.spec, found.info.card) == (sha256, "demo", SPECS[name], CARD)
    assert found.info.parameters == sum(p.numel() for p in network.parameters())
    assert list(found.network.state_dict()) == list(network.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(found.network.state_dict().values(), network.state_dict().values(), strict=True))
    assert encode_checkpoint(found.network, "demo", CARD) == (tmp_path / "m.safetensors").read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_model_without_what_came_later_keeps_the_manifest_and_the_fingerprint_that_it_had():
    for sample, fingerprint in (("full", "13efbbb2d3541ecf"), ("one_feature", "5243342f80ba7aa7")):
        manifest = {name: value for name, value in SPECS[sample].to_dict().items() if name != "behaviours_max"}
        older = decode_model_spec(manifest)
        assert older.fingerprint == fingerprint and older.to_dict() == manifest
        assert older.behaviours_max == BEHAVIOURS_PER_USER_MAX
    assert "recency" not in SPECS["full"].to_dict() and SPECS["recency"].to_dict()["recency"] == (2, 30)


def test_a_read_network_can_be_trained_further():
    network = read_checkpoint(GOOD).network
    assert all(p.requires_grad for p in network.parameters())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1)


REJECTED = {
    "another sha256": (lambda: GOOD, {"expected_sha256": "0" * 64}, "checkpoint_sha256", "000"),
    "another schema": (lambda: GOOD, {"expected_schema_fingerprint": "f" * 16}, "checkpoint_schema", "announcement says ffff"),
    "not safetensors": (lambda: b"PK\x03\x04 not a model at all", {}, "checkpoint_unreadable", "header"),
    "nothing": (lambda: b"", {}, "checkpoint_unreadable", "0 bytes"),
    "header that is a list": (lambda: (2).to_bytes(8, "little") + b"[]", {}, "checkpoint_unreadable", "list"),
    "cut short": (lambda: GOOD[:-4], {}, "checkpoint_unreadable", "safetensors"),
    "no manifest": (lambda: safetensors.numpy.save({"a": np.zeros(2, np.float32)}), {}, "checkpoint_format", "manifest"),
    "another format": (lambda: rebuild(None, lambda m: m.update(format=9)), {}, "checkpoint_format", "9"),
    "a model id that is no text": (lambda: rebuild(None, lambda m: m.update(model_id=[])), {}, "checkpoint_format", "model_id"),
    "a spec that does not read": (lambda: rebuild(None, lambda m: m["spec"].update(width=-1)), {}, "checkpoint_spec", "-1"),
    "a width that is no whole number": (lambda: rebuild(None, lambda m: m["spec"].update(width=8.5)), {}, "checkpoint_spec", "width = 8.5"),
    "a hidden width of text": (
        lambda: rebuild(None, lambda m: m["spec"].update(item_hidden=["x"])),
        {},
        "checkpoint_spec",
        "item_hidden = x",
    ),
    "too many layers": (lambda: rebuild(None, lambda m: m["spec"].update(item_hidden=[4] * 99)), {}, "checkpoint_spec", "99"),
    "a spec of great size": (lambda: rebuild(None, lambda m: m["spec"].update(item_hidden=[10**9])), {}, "checkpoint_spec", "item_hidden"),
    "one bucket for item ids": (lambda: rebuild(None, lambda m: m["spec"].update(item_id_buckets=1)), {}, "checkpoint_spec", "at least 2"),
    "a manifest fingerprint that lies": (
        lambda: rebuild(None, lambda m: m.update(schema_fingerprint="x")),
        {},
        "checkpoint_schema",
        "manifest",
    ),
    "a missing tensor": (lambda: rebuild(lambda t: t.pop("bea.bridges_ND")), {}, "checkpoint_tensors", "bea.bridges_ND"),
    "an unknown tensor": (lambda: rebuild(lambda t: t.update(extra=np.zeros(1, np.float32))), {}, "checkpoint_tensors", "extra"),
    "no W_hash": (lambda: rebuild(lambda t: t.pop("w_hash")), {}, "checkpoint_tensors", "w_hash"),
    "another shape": (
        lambda: rebuild(lambda t: t.update({"bea.bridges_ND": np.zeros((4, 8), np.float32)})),
        {},
        "checkpoint_shape",
        r"bea.bridges_ND has shape \[4, 8\], expected \[3, 8\]",
    ),
    "another dtype": (
        lambda: rebuild(lambda t: t.update({"bea.bridges_ND": t["bea.bridges_ND"].astype(np.float64)})),
        {},
        "checkpoint_dtype",
        "F64",
    ),
    "a NaN": (
        lambda: rebuild(put("head.first.weight", (2, 3), np.nan)),
        {},
        "checkpoint_not_finite",
        r"head.first.weight holds nan at \(2, 3\)",
    ),
    "an infinity": (lambda: rebuild(put("bea.bridges_ND", (0, 0), -np.inf)), {}, "checkpoint_not_finite", "-inf"),
    "other values": (lambda: rebuild(put("bea.bridges_ND", (0, 0), 1.5), fix_digest=False), {}, "checkpoint_content", "sha256"),
    "a W_hash off the grid": (lambda: rebuild(put("w_hash", (0, 0), 2**-13)), {}, "checkpoint_w_hash", "multiples"),
    "another W_hash": (lambda: rebuild(put("w_hash", (0, 0), 0.5)), {}, "checkpoint_w_hash", "LSH version"),
    "vectors beyond fp16": (lambda: rebuild(put("item_half.vector_norm.bias", 0, 1e6)), {}, "checkpoint_dry_run", "item rows of zeros"),
    "logits beyond fp32": (lambda: rebuild(put("head.first.weight", slice(None), 3e38)), {}, "checkpoint_dry_run", "logits"),
}


@pytest.mark.parametrize("what", REJECTED)
def test_a_bad_checkpoint_is_refused_with_its_own_code_and_a_message_that_names_it(what):
    make, expected, code, message = REJECTED[what]
    with pytest.raises(RejectedInput, match=message) as refused:
        read_checkpoint(make(), **expected)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["attended_behaviours", "simtier_behaviours", "sim_behaviours"])
@pytest.mark.parametrize("number", [0, -3, 2.5, True, "9", None, [3], 10**12])
def test_a_number_of_behaviours_that_no_tensor_has_a_shape_of_is_refused_all_the_same(name, number):
    with pytest.raises(RejectedInput, match=name) as refused:
        read_checkpoint(rebuild(None, lambda m: m["spec"].update({name: number})))
    assert refused.value.code == "checkpoint_spec"


@pytest.mark.parametrize("edges", [[], [float("nan")], [0.5, 0.5], [0.9, 0.1], [-0.5], [2.0], ["x"], 0.5])
def test_tiers_that_are_none_are_refused(edges):
    with pytest.raises(RejectedInput) as refused:
        read_checkpoint(rebuild(None, lambda m: m["spec"].update(tier_edges=edges)))
    assert refused.value.code == "checkpoint_spec"


def test_a_file_beyond_the_bound_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKPOINT_BYTES_MAX", 100)
    path = tmp_path / "large"
    path.write_bytes(bytes(101))
    path.chmod(0)
    with pytest.raises(RejectedInput, match="checkpoint_too_large"):
        read_checkpoint(path)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
@settings(max_examples=60)
def test_a_flipped_byte_anywhere_never_gives_another_model_without_an_error(at, flip):
    data = bytearray(GOOD)
    data[at] ^= flip
    try:
        found = read_checkpoint(bytes(data))
    except RejectedInput:
        return
    assert encode_checkpoint(found.network, "demo", {}) == encode_checkpoint(read_checkpoint(GOOD).network, "demo", {})


def test_reading_draws_no_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    read_checkpoint(GOOD)
    assert torch.rand(1) == expected


def test_a_description_counts_parameters_bytes_and_compression(tmp_path):
    network = make_network(SPECS["full"])
    write_checkpoint(tmp_path / "m", network, "demo", CARD)
    found = describe_checkpoint(tmp_path / "m")
    assert found["parameters"] == sum(p.numel() for p in network.parameters()) == sum(found["parameters_by_part"].values())
    assert found["item_compression"] == found["item_raw_width"] / 8
    assert found["row_bytes"]["vector"] == 16 and found["row_bytes"]["total"] == sum(
        v for k, v in found["row_bytes"].items() if k != "total"
    )
    json.dumps(found)
