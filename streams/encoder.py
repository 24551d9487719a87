"""Rows of one version: raw features and embeddings of items in, rows of the version's layout out.

The arithmetic of a row is in schemas/model/item_network.py, from values to columns in schemas/features.py. No torch.

Invariants (I4, I9): a row's bytes depend on its own inputs and on (checkpoint, encoder fingerprint) alone. They do not depend on the other rows of the call,
on its place among them, or on their number. The build, the increment path and a replay all come through here.
An embedding that is missing, of another width, or not finite counts as missing: `has_signature` = 0 and zeros as input. A feature of the
same name in item-features never stands in for it: each component of an item has one source topic.

Arrays: R rows, M width of the multimodal embedding.
Source: AIF, eq. (4), (5), Algorithm 1 line 3; FORMAT.md section 3.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from infra.index.store import IndexStore, read_if_there
from schemas.errors import Corrupted, RejectedInput
from schemas.features import encode_features, encode_plain_columns
from schemas.index.layout import row_layout
from schemas.index.manifest import CHECKPOINT_REPAIR, checkpoint_path
from schemas.kernels.signer import Signer
from schemas.limits import CHECKPOINT_BYTES_MAX
from schemas.model.checkpoint_file import CheckpointFile, read_checkpoint_file
from schemas.model.item_network import ItemNetwork, encoder_fingerprint
from schemas.model.lsh import EMBEDDING_GRID_BITS
from streams.kernels import load_kernels

_ENCODERS_KEPT = 4  # live, backup, published and building; shards hold their own references


class RowEncoder:
    """The one encoder of a version. Keeps no state between calls, so the threads of all shards share it."""

    def __init__(self, version: int, checkpoint: CheckpointFile) -> None:
        self.version = version
        self.spec = checkpoint.spec
        self.layout = row_layout(checkpoint.spec)
        self.model_id = checkpoint.info.model_id
        self.lsh_version = checkpoint.info.lsh_version or ""
        self.checkpoint_sha256 = checkpoint.info.sha256
        self.fingerprint = encoder_fingerprint()
        self._network = ItemNetwork(checkpoint.parameters)
        self._signer = None if checkpoint.w_hash is None else Signer(checkpoint.w_hash, EMBEDDING_GRID_BITS)
        self._schema = checkpoint.spec.schema

    def encode(self, features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None]) -> np.ndarray:
        """All columns of R items: structured array [R] of the layout's dtype. An embedding is float32 bytes, or None."""
        mm_RM, has_R = self._stack(embeddings)
        rows = np.zeros(len(features), self.layout.dtype)
        vectors = {self._schema.multimodal: mm_RM} if self._schema.multimodal else {}
        inputs = encode_features(self._schema.item_half_inputs, features, vectors)
        self._network.encode_into(inputs, rows["vector"], rows["bridge"])
        self._sign(rows, mm_RM, has_R, np.ones(len(rows), bool))
        self._fill_plain(rows, features)
        return rows

    def rewrite(
        self, old_rows: np.ndarray, features: Sequence[Mapping[str, Any]], embeddings: Sequence[bytes | None], signature_stale: np.ndarray
    ) -> np.ndarray:
        """Rows [R] whose item-half inputs did not change: vector and bridge are kept, the signature is computed where stale (bool [R])."""
        rows = np.array(old_rows, self.layout.dtype)
        if (stale_R := np.asarray(signature_stale, bool)).any():
            self._sign(rows, *self._stack(embeddings), stale_R)
        self._fill_plain(rows, features)
        return rows

    def _stack(self, embeddings: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray]:
        """mm_RM float32, and has_R bool: whether this model can read the item's embedding; zeros where not."""
        mm_RM = np.zeros((len(embeddings), self._schema.mm_width), np.float32)
        of_width = [values for values in embeddings if values is not None and len(values) == 4 * mm_RM.shape[1]]
        if not of_width or not mm_RM.shape[1]:
            return mm_RM, np.zeros(len(embeddings), bool)
        has_R = np.array([values is not None and len(values) == 4 * mm_RM.shape[1] for values in embeddings])
        mm_RM[has_R] = np.frombuffer(b"".join(of_width), "<f4").reshape(-1, mm_RM.shape[1])
        finite_R = np.isfinite(mm_RM).all(axis=1)
        mm_RM[~finite_R] = 0
        return mm_RM, has_R & finite_R

    def _sign(self, rows: np.ndarray, mm_RM: np.ndarray, has_R: np.ndarray, stale_R: np.ndarray) -> None:
        """Signature and has_signature of the stale rows (Eq. 5)."""
        rows["has_signature"][stale_R] = 0
        if self._signer is None:
            return
        rows["signature"][stale_R] = 0
        signed_R = has_R & stale_R
        self._signer.sign_into(mm_RM, np.flatnonzero(signed_R), rows["signature"])
        rows["has_signature"][signed_R] = 1

    def _fill_plain(self, rows: np.ndarray, features: Sequence[Mapping[str, Any]]) -> None:
        """The columns that need no network."""
        columns = encode_plain_columns(self._schema, features)
        rows["category"] = columns.category_R
        rows["bid"] = columns.bid_R
        if self._schema.realtime_features:
            rows["realtime"] = columns.realtime_RQ.reshape(rows["realtime"].shape)


class EncoderCache:
    """Encoders of the versions used last, made from the index store's validated checkpoints. Loads the kernels when first asked. Thread-safe."""

    def __init__(self, store: IndexStore) -> None:
        self._store, self._lock = store, threading.Lock()
        self._encoders = functools.lru_cache(_ENCODERS_KEPT)(self._read)

    @property
    def fingerprint(self) -> str:
        """The encoder fingerprint of this process. Loads the kernels."""
        load_kernels()
        return encoder_fingerprint()

    def get(self, version: int, checkpoint_sha256: str) -> RowEncoder:
        """The encoder of a version. Raises Corrupted (`checkpoint_damaged`: the store's copy of the checkpoint fails a check, or is gone), Unavailable."""
        with self._lock:
            return self._encoders(version, checkpoint_sha256)

    def _read(self, version: int, checkpoint_sha256: str) -> RowEncoder:
        load_kernels()
        path = checkpoint_path(checkpoint_sha256)
        data = read_if_there(self._store, path, CHECKPOINT_BYTES_MAX)
        try:
            return RowEncoder(version, read_checkpoint_file(data or b"", checkpoint_sha256))
        except RejectedInput as error:  # it passed every check before it was put there
            wrong = "is missing" if data is None else f"is damaged ({error.message})"
            message = f"{path} of {self._store.url}, the model of version {version}, {wrong}; {CHECKPOINT_REPAIR}"
            raise Corrupted("checkpoint_damaged", message) from error
