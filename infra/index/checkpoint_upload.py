"""A checkpoint file put into the index store, and the record that announces it: the way of every checkpoint to the workers.

Invariants: a record is made only for a file that passed every check that needs no run of the network, of an index that exists. The file is in the store,
named by its sha256, before the record names it. So publishers and workers share the store and no other folder.
"""

from pathlib import Path

from pydantic import ValidationError

from infra.index.control_folds import control_path
from infra.index.store import IndexStore, read_if_there
from schemas.decoding import describe_errors
from schemas.errors import Corrupted, Incompatible, RejectedInput
from schemas.events import CheckpointRecord
from schemas.ids import IdKind
from schemas.index.control_entry import decode_entry
from schemas.index.manifest import checkpoint_path, checkpoint_uri
from schemas.limits import CONTROL_ENTRY_BYTES_MAX
from schemas.model.checkpoint_file import CheckpointInfo, read_checkpoint_file


def upload_checkpoint(store: IndexStore, path: Path, label: str | None = None) -> CheckpointRecord:
    """Put the checkpoint at `path` into the store and return the record that announces it.

    Raises RejectedInput if the file fails a check (schemas/model/checkpoint_file.py) or has ids of another kind than the index (`checkpoint_id_kind`), and for
    a label that is not allowed (`bad_checkpoint_record`); Incompatible (`no_index`) if the store holds no index, Unavailable if the store does not answer.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RejectedInput("checkpoint_unreadable", f"{path} cannot be read: {error}; name a file that `aif train` wrote") from error
    found = read_checkpoint_file(data)
    check_id_kind(store, found.spec.schema.id_kind)
    record = describe_checkpoint(found.info, label)
    keep_checkpoint(store, found.info.sha256, data)
    return record


def describe_checkpoint(info: CheckpointInfo, label: str | None = None) -> CheckpointRecord:
    """The record that announces the store's copy of a checkpoint. Raises RejectedInput (`bad_checkpoint_record`) for a label that is not allowed."""
    try:
        return CheckpointRecord(
            uri=checkpoint_uri(info.sha256),
            size_bytes=info.size_bytes,
            sha256=info.sha256,
            model_id=info.model_id,
            feature_schema=info.schema_fingerprint,
            label=label,
        )
    except ValidationError as error:
        raise RejectedInput("bad_checkpoint_record", f"model {info.model_id} cannot be announced: {describe_errors(error)}") from error


def check_id_kind(store: IndexStore, id_kind: IdKind) -> None:
    """Check that the store holds an index whose item ids are of this kind. Raises Incompatible (`no_index`), RejectedInput (`checkpoint_id_kind`)."""
    raw = read_if_there(store, control_path(0), CONTROL_ENTRY_BYTES_MAX)
    init = None if raw is None else decode_entry(raw).init
    if init is None:
        raise Incompatible(
            "no_index",
            f"{store.url} holds no index; set AIF_INDEX__STORE as it is for the workers, or run `aif topics apply` or start a worker first",
        )
    if init.id_kind is not id_kind:
        message = f"the model's item ids are {id_kind}, those of the index in {store.url} are {init.id_kind}; train with the index's kind"
        raise RejectedInput("checkpoint_id_kind", message)


def keep_checkpoint(store: IndexStore, sha256: str, data: bytes) -> None:
    """Put a checkpoint into the store under its sha256. A copy there with other bytes is damaged, because its name says otherwise; `data` replaces it."""
    try:
        store.put_bytes(checkpoint_path(sha256), data)
    except Corrupted:
        store.remove(checkpoint_path(sha256))
        store.put_bytes(checkpoint_path(sha256), data)
