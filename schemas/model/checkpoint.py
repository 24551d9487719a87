"""Checkpoints: a model as one safetensors file, and every check it must pass before anything else happens.

Here: writing, reading with all checks, describing. Not here: fetching (streams), announcing (infra/kafka), storing under a sha256 (infra).
Form: tensors = the network's parameters by name, and `w_hash`; metadata has one key, `aif`, a JSON manifest: format, model_id, spec, schema
fingerprint, names with shapes and dtypes, sha256 of the tensors, LSH version, card (a free table: range of the data, metrics).

Invariants: nothing read from a file can run code (safetensors and JSON only); no memory is taken for a size that the file itself does not
have; a file that fails any check is a RejectedInput whose code names the check. safetensors has no checksum and loads NaN, hence the checks
here.

    checkpoint_too_large  _sha256  _unreadable  _format  _schema  _spec  _tensors  _shape  _dtype  _not_finite  _content  _w_hash  _dry_run
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from schemas.errors import AifError, RejectedInput
from schemas.features import Scope
from schemas.index.layout import row_layout
from schemas.limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_HEADER_BYTES_MAX, HIDDEN_LAYERS_MAX
from schemas.model.dry_run import find_failed_call
from schemas.model.lsh import W_HASH_ABS_MAX, W_HASH_GRID_BITS, is_on_grid, lsh_version
from schemas.model.network import AifNetwork
from schemas.model.parameters import Parameters, parameters_of
from schemas.model.spec import ModelSpec, decode_model_spec

FORMAT = 1
METADATA_KEY = "aif"
W_HASH = "w_hash"
_LENGTH_BYTES = 8  # a safetensors file opens with the length of its JSON header, little-endian


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What is known of a checkpoint file. `sha256` is of the file, `tensors_sha256` of names, shapes and values alone."""

    model_id: str
    sha256: str
    size_bytes: int
    schema_fingerprint: str
    spec_fingerprint: str
    lsh_version: str | None
    tensors_sha256: str
    parameters: int
    card: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that passed every check. `network` is in evaluation mode on the CPU; `w_hash` float32 [K, mm_width] or None."""

    spec: ModelSpec
    network: AifNetwork
    w_hash: np.ndarray | None
    info: CheckpointInfo

    @property
    def parameters(self) -> Parameters:
        """The network's, as plain arrays."""
        return parameters_of(self.network)


def encode_checkpoint(network: AifNetwork, model_id: str, card: Mapping[str, Any]) -> bytes:
    """The file's bytes: the same network, id and card give the same bytes."""
    tensors = {name: np.ascontiguousarray(t.detach().cpu().numpy()) for name, t in network.state_dict().items()}
    if network.w_hash_KM is not None:
        tensors[W_HASH] = np.ascontiguousarray(network.w_hash_KM, np.float32)
    manifest = {
        "format": FORMAT,
        "model_id": model_id,
        "spec": network.spec.to_dict(),
        "schema_fingerprint": network.spec.schema.fingerprint,
        "tensors": {name: {"shape": list(a.shape), "dtype": a.dtype.name} for name, a in sorted(tensors.items())},
        "tensors_sha256": _digest_tensors(tensors),
        "lsh_version": _lsh_version_of(network.spec, network.w_hash_KM),
        "card": dict(card),
    }
    return safetensors.numpy.save(tensors, {METADATA_KEY: json.dumps(manifest, sort_keys=True, allow_nan=False)})


def write_checkpoint(path: str | os.PathLike[str], network: AifNetwork, model_id: str, card: Mapping[str, Any]) -> CheckpointInfo:
    """Writes the file whole or not at all (temporary file, fsync, rename). Nothing is judged here: the reader does."""
    data, target = encode_checkpoint(network, model_id, card), Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)
    manifest = _decode_manifest(_decode_header(data))
    return _info(manifest, data, sum(t.numel() for t in network.parameters()), network.spec)


def read_checkpoint(
    source: str | os.PathLike[str] | bytes, expected_sha256: str | None = None, expected_schema_fingerprint: str | None = None
) -> Checkpoint:
    """A checkpoint that may be served: every check, cheapest first. Raises RejectedInput; the codes are listed at the top."""
    data = _read_bounded(source)
    _check_sha256(data, expected_sha256)
    header = _decode_header(data)
    manifest = _decode_manifest(header)
    spec = _decode_spec(manifest, expected_schema_fingerprint)
    network = _blank_network(spec)
    _check_tensors(header, _expected_tensors(network))
    tensors = _load_tensors(data)
    _check_values(tensors, manifest)
    w_hash_KM = _check_w_hash(spec, tensors.pop(W_HASH, None), manifest)
    network.w_hash_KM = w_hash_KM
    network.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in tensors.items()}, assign=True)
    network.eval()
    failed = find_failed_call(network)
    if failed is not None:
        raise RejectedInput("checkpoint_dry_run", f"{failed}; expected finite numbers for zeros and for random inputs; train again")
    return Checkpoint(spec, network, w_hash_KM, _info(manifest, data, sum(a.size for a in tensors.values()), spec))


def _read_bounded(source: str | os.PathLike[str] | bytes) -> bytes:
    size = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
    if size > CHECKPOINT_BYTES_MAX:
        raise RejectedInput("checkpoint_too_large", f"checkpoint has {size} bytes, expected at most {CHECKPOINT_BYTES_MAX}")
    return source if isinstance(source, bytes) else Path(source).read_bytes()


def _check_sha256(data: bytes, expected: str | None) -> None:
    found = hashlib.sha256(data).hexdigest()
    if expected is not None and found != expected.lower():
        raise RejectedInput(
            "checkpoint_sha256", f"sha256 of the file is {found}, announced as {expected}; publish the file that was announced"
        )


def _decode_header(data: bytes) -> dict[str, Any]:
    """The safetensors header, before any tensor is looked at."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or length > min(len(data) - _LENGTH_BYTES, CHECKPOINT_HEADER_BYTES_MAX):
        raise RejectedInput(
            "checkpoint_unreadable",
            f"the header claims {length} of {len(data)} bytes, expected at most {CHECKPOINT_HEADER_BYTES_MAX} and inside the file",
            "malformed",
        )
    try:
        header = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])
    except (ValueError, RecursionError) as error:
        raise RejectedInput(
            "checkpoint_unreadable", f"the header is not JSON: {error}; expected a safetensors file", "malformed"
        ) from error
    if not isinstance(header, dict):
        raise RejectedInput("checkpoint_unreadable", f"the header is a {type(header).__name__}, expected a JSON object", "malformed")
    return header


def _decode_manifest(header: Mapping[str, Any]) -> dict[str, Any]:
    try:
        manifest = json.loads(header["__metadata__"][METADATA_KEY])
        found = manifest["format"], manifest["model_id"], manifest["spec"], manifest["tensors_sha256"], manifest["card"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        message = f"metadata {METADATA_KEY!r} is not a manifest ({error!r}); write checkpoints with write_checkpoint"
        raise RejectedInput("checkpoint_format", message, "schema") from error
    if found[0] != FORMAT:
        raise RejectedInput("checkpoint_format", f"manifest format {found[0]!r}, expected {FORMAT}; write it with this version", "schema")
    if not isinstance(found[1], str) or not isinstance(found[4], dict):
        raise RejectedInput("checkpoint_format", f"model_id {found[1]!r} must be text and card an object", "schema")
    return manifest


def _decode_spec(manifest: Mapping[str, Any], expected_schema_fingerprint: str | None) -> ModelSpec:
    try:
        spec = decode_model_spec(manifest["spec"])
        fingerprint = spec.schema.fingerprint
        layers = max(map(len, (spec.item_hidden, spec.user_hidden, spec.bridge_hidden, spec.head_hidden)))
    except (AifError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RejectedInput("checkpoint_spec", f"the model spec does not read: {error}") from error
    if layers > HIDDEN_LAYERS_MAX:
        raise RejectedInput("checkpoint_spec", f"{layers} hidden layers in one part, expected at most {HIDDEN_LAYERS_MAX}")
    for source, expected in (("manifest", manifest.get("schema_fingerprint")), ("announcement", expected_schema_fingerprint)):
        if expected is not None and fingerprint != expected:
            message = f"feature schema has fingerprint {fingerprint}, the {source} says {expected}; publish it with its own schema"
            raise RejectedInput("checkpoint_schema", message)
    return spec


def _blank_network(spec: ModelSpec) -> AifNetwork:
    """The network of a spec without memory behind it: what a file must hold, before anything of its size is allocated."""
    try:
        with torch.device("meta"):
            return AifNetwork(spec, None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RejectedInput("checkpoint_spec", f"no network can be built from the spec: {error}") from error


def _expected_tensors(network: AifNetwork) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    spec = network.spec
    return shapes | ({W_HASH: (spec.hash_bits, spec.schema.mm_width)} if spec.schema.multimodal else {})


def _check_tensors(header: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Names, shapes and dtypes by the header alone."""
    listed = {name: entry for name, entry in header.items() if name != "__metadata__"}
    if listed.keys() != expected.keys():
        missing, unknown = sorted(expected.keys() - listed.keys())[:5], sorted(listed.keys() - expected.keys())[:5]
        raise RejectedInput(
            "checkpoint_tensors", f"missing tensors {missing}, unknown tensors {unknown}; expected exactly those of the spec"
        )
    for name, entry in listed.items():
        shape, dtype = (entry.get("shape"), entry.get("dtype")) if isinstance(entry, dict) else (None, None)
        if shape != list(expected[name]):
            raise RejectedInput("checkpoint_shape", f"tensor {name} has shape {shape}, expected {list(expected[name])}")
        if dtype != "F32":
            raise RejectedInput("checkpoint_dtype", f"tensor {name} has dtype {dtype}, expected F32")


def _load_tensors(data: bytes) -> dict[str, np.ndarray]:
    try:
        return safetensors.numpy.load(data)
    except Exception as error:  # the library raises its own SafetensorError and, for some headers, others
        raise RejectedInput("checkpoint_unreadable", f"not a safetensors file: {error}", "malformed") from error


def _check_values(tensors: Mapping[str, np.ndarray], manifest: Mapping[str, Any]) -> None:
    """All values finite, and the values that were written."""
    for name, array in tensors.items():
        finite = np.isfinite(array)
        if not finite.all():
            at = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise RejectedInput("checkpoint_not_finite", f"tensor {name} holds {array[at]} at {at}, expected finite values only")
    found = _digest_tensors(tensors)
    if found != manifest["tensors_sha256"]:
        raise RejectedInput(
            "checkpoint_content", f"tensors have sha256 {found}, the manifest says {manifest['tensors_sha256']}; write it again"
        )


def _check_w_hash(spec: ModelSpec, w_hash_KM: np.ndarray | None, manifest: Mapping[str, Any]) -> np.ndarray | None:
    if w_hash_KM is not None and not is_on_grid(w_hash_KM):
        message = f"tensor {W_HASH} must be multiples of 2^-{W_HASH_GRID_BITS} within +-{W_HASH_ABS_MAX}, or signatures differ between CPUs"
        raise RejectedInput("checkpoint_w_hash", f"{message}; make it with make_w_hash")
    found = _lsh_version_of(spec, w_hash_KM)
    if found != manifest.get("lsh_version"):
        raise RejectedInput("checkpoint_w_hash", f"LSH version is {found}, the manifest says {manifest.get('lsh_version')}")
    return w_hash_KM


def _lsh_version_of(spec: ModelSpec, w_hash_KM: np.ndarray | None) -> str | None:
    return lsh_version(w_hash_KM, spec.schema.multimodal) if w_hash_KM is not None and spec.schema.multimodal else None


def _digest_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """sha256 over (name, dtype, shape, little-endian bytes) in order of the names."""
    digest = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        digest.update(f"{name}/{array.dtype.name}/{array.shape}/".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _info(manifest: Mapping[str, Any], data: bytes, parameters: int, spec: ModelSpec) -> CheckpointInfo:
    return CheckpointInfo(
        model_id=manifest["model_id"],
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        schema_fingerprint=spec.schema.fingerprint,
        spec_fingerprint=spec.fingerprint,
        lsh_version=manifest.get("lsh_version"),
        tensors_sha256=manifest["tensors_sha256"],
        parameters=parameters,
        card=manifest["card"],
    )


def describe_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """For people: sizes, parameters by part, bytes of a row, and the compression from raw features to async vectors (paper: > 10 and > 3).

    Widths of raw features are those of the concatenated embeddings that each half reads, in numbers; the user's count every attended
    behaviour.
    """
    checkpoint = read_checkpoint(path)
    spec, network, info = checkpoint.spec, checkpoint.network, checkpoint.info
    by_part = {name: sum(p.numel() for p in part.parameters()) for name, part in network.named_children()}
    item_raw = network.item_half.features.width
    user_raw = network.user_half.features.width + spec.attended_behaviours * network.behaviour.width
    layout = row_layout(spec)
    row_bytes = {column.name: layout.dtype[column.name].itemsize for column in layout.columns}
    return {
        "model_id": info.model_id,
        "sha256": info.sha256,
        "size_bytes": info.size_bytes,
        "schema_fingerprint": info.schema_fingerprint,
        "spec_fingerprint": info.spec_fingerprint,
        "lsh_version": info.lsh_version,
        "parameters": info.parameters,
        "parameters_by_part": by_part,
        "features": {scope.value: len(spec.schema.of(scope)) for scope in Scope},
        "spec": spec.to_dict(),
        "row_bytes": row_bytes | {"total": layout.row_bytes},
        "item_raw_width": item_raw,
        "item_compression": item_raw / spec.width,
        "user_raw_width": user_raw,
        "user_compression": user_raw / (3 * spec.width),
        "card": dict(info.card),
    }
