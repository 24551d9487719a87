"""Checkpoints: a model as one safetensors file, and every check it must pass before anything else happens.

Form: tensors = the network's parameters by name, and `w_hash`. The metadata has one key, `aif`, with a JSON manifest. The manifest has format, model_id,
spec, schema fingerprint, names with shapes and dtypes, sha256 of the tensors, LSH version, card (a free table: range of the data, metrics).

Invariants: nothing read from a file can run code (safetensors and JSON only). No memory is taken for a size that the file itself does not have. A file that
fails any check is a RejectedInput whose code names the check. safetensors has no checksum and loads NaN, hence the checks here.

    checkpoint_too_large  _sha256  _unreadable  _format  _schema  _spec  _tensors  _shape  _dtype  _not_finite  _content  _w_hash  _dry_run
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from schemas.errors import RejectedInput
from schemas.features import Scope
from schemas.index.layout import row_layout
from schemas.model.checkpoint_file import (
    FORMAT,
    METADATA_KEY,
    W_HASH,
    CheckpointFile,
    digest_tensors,
    lsh_version_of,
    read_checkpoint_file,
)
from schemas.model.inputs import FeatureTensors
from schemas.model.item_network import EncodedRows
from schemas.model.network import AifNetwork, build_network
from schemas.model.random_inputs import CANDIDATES, SEED, USERS, draw_block, draw_candidates, draw_ranker_items, draw_users


@dataclass(frozen=True, slots=True)
class Checkpoint(CheckpointFile):
    """A checkpoint that passed every check. `network` is in evaluation mode on the CPU."""

    network: AifNetwork


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
        "tensors_sha256": digest_tensors(tensors),
        "lsh_version": lsh_version_of(network.spec, network.w_hash_KM),
        "card": dict(card),
    }
    return safetensors.numpy.save(tensors, {METADATA_KEY: json.dumps(manifest, sort_keys=True, allow_nan=False)})


def write_checkpoint(path: str | os.PathLike[str], network: AifNetwork, model_id: str, card: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all (temporary file, fsync, rename). Nothing is judged here: the reader does."""
    data, target = encode_checkpoint(network, model_id, card), Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(target)  # a full disk names no file
        raise


def read_checkpoint(
    source: str | os.PathLike[str] | bytes, expected_sha256: str | None = None, expected_schema_fingerprint: str | None = None
) -> Checkpoint:
    """A checkpoint that may be served: every check, cheapest first. Raises RejectedInput; the codes are listed at the top."""
    read = read_checkpoint_file(source, expected_sha256, expected_schema_fingerprint)
    try:
        network = build_network(read.parameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RejectedInput("checkpoint_spec", f"no network can be built from the spec: {error}") from error
    network.w_hash_KM = read.w_hash
    failed = _find_failed_call(network)
    if failed is not None:
        raise RejectedInput("checkpoint_dry_run", f"{failed}; expected finite numbers for zeros and for random inputs; train again")
    return Checkpoint(read.parameters, read.w_hash, read.info, network)


@torch.inference_mode()
def _find_failed_call(network: AifNetwork) -> str | None:
    """The dry run: which of the three calls gave numbers that are not finite and for which inputs, None if none did."""
    for what, rng in (("zeros", None), ("random inputs", np.random.default_rng(SEED))):
        items = FeatureTensors.from_block(draw_block(network.spec.schema.item_half_inputs, USERS * CANDIDATES, rng))
        stored = EncodedRows(*(rows.half().numpy() for rows in network.item_rows(items)))
        if not (np.isfinite(stored.vectors_RD).all() and np.isfinite(stored.bridge_RN).all()):
            return f"item rows of {what} are not finite in fp16"
        states = network.user_states(draw_users(network.spec, stored, rng))
        logits = network.joint_logits(states, draw_candidates(network.spec, stored, rng))
        if not torch.isfinite(logits).all():
            return f"logits of {what} are not finite"
        if network.ranker is not None:
            history_BL, items_BC = draw_ranker_items(network.ranker.spec, rng)
            before = network.ranker.extend(network.ranker.behaviour_tokens(history_BL, torch.zeros_like(history_BL)))
            if not torch.isfinite(network.ranker.score(network.ranker.candidate_tokens(items_BC, logits), logits, before)).all():
                return f"the ranker's logits of {what} are not finite"
    return None


def describe_checkpoint(source: str | os.PathLike[str] | bytes) -> dict[str, Any]:
    """For people: sizes, parameters by part, bytes of a row, and the compression from raw features to async vectors (paper: > 10 and > 3).

    Widths of raw features are those of the concatenated embeddings that each half reads, in numbers; the user's count every attended
    behaviour.
    """
    checkpoint = read_checkpoint(source)
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
