"""Records that announce a checkpoint file by its path, also a damaged one, as a publisher that uploads nothing makes them."""

import hashlib
import json
from pathlib import Path

from schemas.events import CheckpointRecord

_LENGTH_BYTES = 8


def point_to(path: Path) -> CheckpointRecord:
    """The record of the file at `path`, by the names in its header alone."""
    data = path.read_bytes()
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    manifest = json.loads(json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length])["__metadata__"]["aif"])
    return CheckpointRecord(
        uri=path.resolve().as_uri(),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        model_id=manifest["model_id"],
        feature_schema=manifest["schema_fingerprint"],
    )
