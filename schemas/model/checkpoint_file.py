"""The file of a checkpoint, read and judged without torch: all that a server on a CPU needs, and the first half of what a worker checks.

Invariants: nothing read from a file can run code (safetensors and JSON only); no memory is taken for a size that the file itself does not have.
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

from schemas.errors import AifError, RejectedInput
from schemas.limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_HEADER_BYTES_MAX
from schemas.model.lsh import W_HASH_ABS_MAX, W_HASH_GRID_BITS, is_on_grid, lsh_version
from schemas.model.parameters import Parameters, parameter_shapes
from schemas.model.spec import ModelSpec, decode_model_spec

FORMAT = 1
METADATA_KEY = "aif"
W_HASH = "w_hash"
_LENGTH_BYTES = 8  # a safetensors file opens with the length of its JSON header, little-endian


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The facts of a checkpoint file. `sha256` is of the file, `tensors_sha256` of names, shapes and values alone."""

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
class CheckpointFile:
    """What a file that passed holds. `w_hash` float32 [K, mm_width] or None."""

    parameters: Parameters
    w_hash: np.ndarray | None
    info: CheckpointInfo

    @property
    def spec(self) -> ModelSpec:
        """Of the model."""
        return self.parameters.spec


def read_checkpoint_file(
    source: str | os.PathLike[str] | bytes, expected_sha256: str | None = None, expected_schema_fingerprint: str | None = None
) -> CheckpointFile:
    """Every check but the run of the network, cheapest first. Raises RejectedInput."""
    data = _read_bounded(source)
    _check_sha256(data, expected_sha256)
    header = decode_header(data)
    manifest = decode_manifest(header)
    spec = _decode_spec(manifest, expected_schema_fingerprint)
    _check_tensors(header, _expected_tensors(spec))
    tensors = {name: array.copy() for name, array in _load_tensors(data).items()}
    _check_values(tensors, manifest)
    w_hash_KM = _check_w_hash(spec, tensors.pop(W_HASH, None), manifest)
    info = CheckpointInfo(
        model_id=manifest["model_id"],
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        schema_fingerprint=spec.schema.fingerprint,
        spec_fingerprint=spec.fingerprint,
        lsh_version=manifest.get("lsh_version"),
        tensors_sha256=manifest["tensors_sha256"],
        parameters=sum(a.size for a in tensors.values()),
        card=manifest["card"],
    )
    return CheckpointFile(Parameters(spec, tensors), w_hash_KM, info)


def _expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Names and shapes by the spec alone: before anything of their size is allocated."""
    return parameter_shapes(spec) | ({W_HASH: (spec.hash_bits, spec.schema.mm_width)} if spec.schema.multimodal else {})


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


def decode_header(data: bytes) -> dict[str, Any]:
    """The safetensors header, before any tensor is looked at."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if len(data) < _LENGTH_BYTES or length > min(len(data) - _LENGTH_BYTES, CHECKPOINT_HEADER_BYTES_MAX):
        raise RejectedInput(
            "checkpoint_unreadable",
            f"the file is no safetensors checkpoint: its header claims {length} of its {len(data)} bytes (at most {CHECKPOINT_HEADER_BYTES_MAX} are "
            "allowed); give one that `aif train` has written, whole",
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


def decode_manifest(header: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON manifest in the header. Raises RejectedInput (`checkpoint_format`)."""
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
    except (AifError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RejectedInput("checkpoint_spec", f"the model spec does not read: {error}") from error
    for source, expected in (("manifest", manifest.get("schema_fingerprint")), ("announcement", expected_schema_fingerprint)):
        if expected is not None and fingerprint != expected:
            message = f"feature schema has fingerprint {fingerprint}, the {source} says {expected}; publish it with its own schema"
            raise RejectedInput("checkpoint_schema", message)
    return spec


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
    found = digest_tensors(tensors)
    if found != manifest["tensors_sha256"]:
        raise RejectedInput(
            "checkpoint_content", f"tensors have sha256 {found}, the manifest says {manifest['tensors_sha256']}; write it again"
        )


def _check_w_hash(spec: ModelSpec, w_hash_KM: np.ndarray | None, manifest: Mapping[str, Any]) -> np.ndarray | None:
    if w_hash_KM is not None and not is_on_grid(w_hash_KM):
        message = f"tensor {W_HASH} must be multiples of 2^-{W_HASH_GRID_BITS} within +-{W_HASH_ABS_MAX}, or signatures differ between CPUs"
        raise RejectedInput("checkpoint_w_hash", f"{message}; make it with make_w_hash")
    found = lsh_version_of(spec, w_hash_KM)
    if found != manifest.get("lsh_version"):
        raise RejectedInput("checkpoint_w_hash", f"LSH version is {found}, the manifest says {manifest.get('lsh_version')}; write it again")
    return w_hash_KM


def lsh_version_of(spec: ModelSpec, w_hash_KM: np.ndarray | None) -> str | None:
    """LSH version of a model; None without a multimodal embedding."""
    return lsh_version(w_hash_KM, spec.schema.multimodal) if w_hash_KM is not None and spec.schema.multimodal else None


def digest_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """sha256 over (name, dtype, shape, little-endian bytes) in order of the names."""
    digest = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        digest.update(f"{name}/{array.dtype.name}/{array.shape}/".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
