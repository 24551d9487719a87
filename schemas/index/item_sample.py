"""Inputs of a few items of a sealed shard, for comparing two models on the same items (FORMAT.md section 6).

Invariant: the sample follows from the inputs of the shard alone, so two seals of the same items write the same bytes under the same name.

Arrays: R rows.
"""

import base64
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.errors import Corrupted
from schemas.fields import corrupted_as
from schemas.index.digest import checksum
from schemas.index.manifest import decode_document, encode_document

ITEMS_MAX = 512  # of one shard
ITEM_BYTES_MAX = 16 * 1024  # an item with longer inputs is left out, so that a sample stays within MANIFEST_BYTES_MAX


@dataclass(frozen=True, slots=True)
class SampledItem:
    """One item: its index key, its features as msgpack, its embedding as float32 bytes or None."""

    key: bytes
    features: bytes
    embedding: bytes | None

    @property
    def size_bytes(self) -> int:
        """Of the inputs."""
        return len(self.features) + len(self.embedding or b"")


class KeySampler:
    """Chooses the ITEMS_MAX keys with the smallest input hashes, which are as good as random numbers; of equal hashes the smaller keys."""

    def __init__(self) -> None:
        self._chosen: list[tuple[int, bytes]] = []

    def add(self, keys: Sequence[bytes], input_hashes_R: np.ndarray) -> None:
        """Offers rows. The keys of the next call come after these."""
        full = len(self._chosen) == ITEMS_MAX
        places = np.flatnonzero(input_hashes_R < np.uint64(self._chosen[-1][0])) if full else np.arange(len(keys))
        if len(places):
            offered = [(int(input_hashes_R[at]), bytes(keys[at])) for at in places.tolist()]
            self._chosen = sorted(self._chosen + offered)[:ITEMS_MAX]

    @property
    def keys(self) -> list[bytes]:
        """The chosen keys, ascending."""
        return sorted(key for _, key in self._chosen)


def sample_path(version: int, revision: int, shard: int, data_digest: str) -> str:
    """Place of a shard's sample in the store; `data_digest` is that of its seal."""
    return f"versions/{version}/{revision}/samples/{shard:05d}-{data_digest}.sample"


def encode_sample(items: Sequence[SampledItem]) -> bytes:
    """Bytes of a sample file."""
    kept = [item for item in items if item.size_bytes <= ITEM_BYTES_MAX]
    rows = [[i.key.hex(), _to_text(i.features), None if i.embedding is None else _to_text(i.embedding)] for i in kept]
    return encode_document("sample", {"items": rows, "check": _check(kept)})


def decode_sample(raw: bytes) -> list[SampledItem]:
    """The inverse of `encode_sample`. Raises Corrupted (`bad_sample`), Incompatible (`sample_format`)."""
    fields = decode_document("sample", raw)
    with corrupted_as("bad_sample", f"sample of {len(raw)} bytes does not have its fields"):
        items = [
            SampledItem(bytes.fromhex(key), _to_bytes(features), None if embedding is None else _to_bytes(embedding))
            for key, features, embedding in fields["items"]
        ]
        check = fields["check"]
    if check != _check(items):
        raise Corrupted("bad_sample", f"sample of {len(items)} items has checksum {_check(items)}, it says {check}")
    return items


def _to_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _to_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _check(items: Sequence[SampledItem]) -> str:
    parts = [part for item in items for part in dataclasses.astuple(item) if part is not None]
    return checksum(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
