"""The pointer to a checkpoint file: what a record of model-checkpoints says of it.

Here: the sha256 of the file's bytes, and the names in its JSON header. Not here: whether the model may be served, which the worker that receives the pointer
judges (streams/agents/checkpoints.py), and of which `aif publish checkpoint` makes some checks beforehand.
Source: the safetensors format, 8 bytes little-endian length and a JSON header; schemas/model/checkpoint.py for the manifest in it.
"""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infra.files import sha256_of_file
from schemas.errors import RejectedInput
from schemas.events import CheckpointRecord, describe_errors
from schemas.limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_HEADER_BYTES_MAX

_LENGTH_BYTES = 8
_MANIFEST_KEY = "aif"


def read_checkpoint_pointer(path: Path, label: str | None = None) -> CheckpointRecord:
    """The record that points to the checkpoint at `path`. Raises RejectedInput (`checkpoint_unreadable`, `bad_checkpoint_record`)."""
    try:
        size_bytes = path.stat().st_size
        if not 0 < size_bytes <= CHECKPOINT_BYTES_MAX:
            raise ValueError(f"it has {size_bytes} bytes, expected 1 to {CHECKPOINT_BYTES_MAX}")
        manifest = _read_manifest(path, size_bytes)
        return CheckpointRecord(
            uri=path.resolve().as_uri(),
            size_bytes=size_bytes,
            sha256=sha256_of_file(path),
            model_id=manifest["model_id"],
            feature_schema=manifest["schema_fingerprint"],
            label=label,
        )
    except ValidationError as error:
        raise RejectedInput("bad_checkpoint_record", f"{path} cannot be announced: {describe_errors(error)}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RejectedInput("checkpoint_unreadable", f"{path} is not a checkpoint of ours: {error}; `aif train` writes one") from error


def _read_manifest(path: Path, size_bytes: int) -> dict[str, Any]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > min(CHECKPOINT_HEADER_BYTES_MAX, size_bytes - _LENGTH_BYTES):
            raise ValueError(f"its header says {length} bytes")
        header = json.loads(file.read(length))
    manifest: dict[str, Any] = json.loads(header["__metadata__"][_MANIFEST_KEY])
    return manifest
