"""Two versions of an index compared item by item: which rows differ, in which columns, whether data or only floats differ, and whether the models do.

A side is a version of this store (`4`, `4.1` or a token), or a folder: what `aif replay --directory` left, or another index store.
Invariants: both sides are read in key order, block by block, so memory does not depend on their size. Every part is checked against its manifest while it is
read. An item with other inputs differs in *data*. One with the same inputs and another row differs in *floats*: it comes from another model, or
from the same model on another processor. Stamps and positions are not compared.
"""

import bisect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from infra.index.control_log import ControlLog
from infra.index.parts import read_full_part, read_incremental_part, read_manifest
from infra.index.store import IndexStore, find_index_store
from schemas.errors import Incompatible, Misconfigured, Unavailable
from schemas.ids import Id, IdKind, decode_index_key
from schemas.index.control import VersionStatus
from schemas.index.digest import merge_parts
from schemas.index.layout import Column, RowBlock
from schemas.index.manifest import Manifest, Seal, decode_manifest, manifest_path

REPLAYED_ROWS = "rows"  # in a replay's directory: an index store with one manifest
REPLAYED_REVISION = (0, 0)
_VERSION = re.compile(r"(\d{1,18})(?:\.(\d{1,9})(?:-[0-9a-f]{8}.*)?)?")
_EXAMPLES_MAX = 20
_ONLY_A, _ONLY_B, _DATA, _FLOATS = "only in A", "only in B", "data", "floats"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two sides: its name for people, the store with its files, its manifest."""

    name: str
    store: IndexStore
    manifest: Manifest


@dataclass
class ColumnDifference:
    """How many items differ in a column, and the greatest difference of two finite numbers in it."""

    items: int = 0
    greatest: float = 0.0


@dataclass(frozen=True, slots=True)
class Example:
    """One item that differs: how, and in which columns."""

    id: Id
    kind: str
    columns: tuple[str, ...] = ()


@dataclass
class Difference:
    """The result of a comparison.

    other_model   the checkpoints differ, so users and scores may differ although every row is equal
    left_out      columns that only one side has, or that have another type or width; they are not compared
    """

    rows_a: int = 0
    rows_b: int = 0
    only_a: int = 0
    only_b: int = 0
    data: int = 0
    floats: int = 0
    columns: dict[str, ColumnDifference] = field(default_factory=dict)
    other_model: bool = False
    left_out: tuple[str, ...] = ()
    examples: list[Example] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same rows and the same model."""
        return not (self.only_a or self.only_b or self.data or self.floats or self.left_out or self.other_model)


def open_side(text: str, log: ControlLog) -> Side:
    """A side as people name it. Raises Misconfigured (`diff_side`), Incompatible (`unknown_version`), and as `read_manifest`."""
    named = _VERSION.fullmatch(text)
    if named is not None and not _is_folder(Path(text)):
        return Side(text, log.store, _read_version(log, int(named[1]), None if named[2] is None else int(named[2])))
    folder = Path(text)
    if _is_folder(folder / REPLAYED_ROWS):
        store = find_index_store(str(folder / REPLAYED_ROWS))
        return Side(text, store, decode_manifest(store.get(manifest_path(*REPLAYED_REVISION))))
    if text != "live" and not _is_folder(folder / "control"):
        raise Misconfigured(
            "diff_side", f"{text!r} is not `live`, no version, no folder of `aif replay --directory` (without --adopt), and no index store"
        )
    other = log if text == "live" else ControlLog(find_index_store(text))
    current = other.refresh().current
    if current is None:
        raise Unavailable(
            "no_version",
            f"the index store {other.store.url} serves no version; name another store, or a version of this one: see `aif index list`",
        )
    return Side(text, other.store, read_manifest(other.store, current))


def readable_versions(log: ControlLog) -> list[VersionStatus]:
    """The versions whose rows can be read, oldest first."""
    found = sorted(log.refresh().versions.items())
    return [status for _, status in found if status.revision >= 0 and log.store.exists(manifest_path(status.version, status.revision))]


def _is_folder(path: Path) -> bool:
    """Also of a text that can be no path, as one that is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _read_version(log: ControlLog, version: int, revision: int | None) -> Manifest:
    state = log.refresh()
    status = state.versions.get(version)
    if status is None:
        raise Incompatible("unknown_version", f"the index has no version {version}; `aif index list` shows those that it has")
    if revision is None or revision == status.revision:
        return read_manifest(log.store, status)
    return decode_manifest(log.store.get(manifest_path(version, revision)))


def diff_versions(a: Side, b: Side, on_shard: Callable[[int, int], object] = lambda _done, _of: None) -> Difference:
    """Compare two versions row by row, and their checkpoints. `on_shard(done, of)` is called for progress.

    Raises Incompatible (`other_catalogue`) for another id kind or number of shards.
    """
    layouts, seals = (a.manifest.layout, b.manifest.layout), (a.manifest.seals, b.manifest.seals)
    if layouts[0].id_kind is not layouts[1].id_kind or len(seals[0]) != len(seals[1]):
        raise Incompatible(
            "other_catalogue",
            f"{a.name} has {len(seals[0])} shards and {layouts[0].id_kind} ids, {b.name} {len(seals[1])} and {layouts[1].id_kind}: "
            "their items do not match; compare versions of one catalogue and number of shards",
        )
    comparison = _Comparison(layouts[0].columns, layouts[1].columns, layouts[0].id_kind)
    for done, (seal_a, seal_b) in enumerate(zip(*seals, strict=True), 1):
        comparison.compare(_View(_read_rows(a, seal_a)), _View(_read_rows(b, seal_b)))
        on_shard(done, len(seals[0]))
    comparison.found.other_model = a.manifest.checkpoint_sha256 != b.manifest.checkpoint_sha256
    return comparison.found


def _read_rows(side: Side, seal: Seal) -> Iterator[RowBlock]:
    layout = side.manifest.layout
    full = read_full_part(side.store, seal.full, layout)
    return merge_parts(layout, full, read_incremental_part(side.store, seal.incremental))


class _View:
    """A merged view, cut at any key: keys as bytes, input hashes and rows as arrays."""

    def __init__(self, blocks: Iterable[RowBlock]) -> None:
        self._blocks = (block for block in blocks if len(block) > 0)
        self._keys: list[bytes] = []
        self._block: RowBlock | None = None

    def last_key(self) -> bytes | None:
        """The last loaded key; loads the next block if none is loaded. None at the end."""
        if not self._keys:
            self._block = next(self._blocks, None)
            self._keys = [] if self._block is None else list(self._block.keys)
        return self._keys[-1] if self._keys else None

    def take(self, to: bytes) -> tuple[list[bytes], np.ndarray, np.ndarray]:
        """Take the loaded rows up to and including key `to`: (keys, input hashes [R], rows [R])."""
        if self._block is None:
            return [], np.empty(0, np.uint64), np.empty(0)
        at = len(self._block) - len(self._keys)
        count = bisect.bisect_right(self._keys, to)
        keys, self._keys = self._keys[:count], self._keys[count:]
        return keys, self._block.stamps["input_hash"][at : at + count], self._block.rows[at : at + count]


class _Comparison:
    """Compares the shards sequentially, and counts."""

    def __init__(self, a: tuple[Column, ...], b: tuple[Column, ...], id_kind: IdKind) -> None:
        shape_a, shape_b = ({c.name: (c.dtype, c.width) for c in columns} for columns in (a, b))
        self._common = [name for name in shape_a if shape_a[name] == shape_b.get(name)]
        self._id_kind = id_kind
        left_out = sorted((shape_a.keys() | shape_b.keys()) - set(self._common))
        self.found = Difference(left_out=tuple(left_out))

    def compare(self, a: _View, b: _View) -> None:
        """Walks through both views of one shard."""
        while (ends := [end for end in (a.last_key(), b.last_key()) if end is not None]) != []:
            self._compare_run(a.take(min(ends)), b.take(min(ends)))

    def _compare_run(self, a: tuple[list[bytes], np.ndarray, np.ndarray], b: tuple[list[bytes], np.ndarray, np.ndarray]) -> None:
        keys_a, hashes_a, rows_a = a
        keys_b, hashes_b, rows_b = b
        place_b = {key: i for i, key in enumerate(keys_b)}
        both = [(i, place_b[key]) for i, key in enumerate(keys_a) if key in place_b]
        self.found.rows_a += len(keys_a)
        self.found.rows_b += len(keys_b)
        self.found.only_a += self._add_missing(keys_a, place_b.keys(), _ONLY_A)
        self.found.only_b += self._add_missing(keys_b, set(keys_a), _ONLY_B)
        if both:
            at_a, at_b = (np.array(side) for side in zip(*both, strict=True))
            self._compare_rows([keys_a[i] for i in at_a], hashes_a[at_a] != hashes_b[at_b], rows_a[at_a], rows_b[at_b])

    def _add_missing(self, keys: Iterable[bytes], others: Iterable[bytes], kind: str) -> int:
        missing = [key for key in keys if key not in others]
        for key in missing:
            self._add_example(key, kind, ())
        return len(missing)

    def _compare_rows(self, keys: list[bytes], other_inputs_R: np.ndarray, rows_a: np.ndarray, rows_b: np.ndarray) -> None:
        """Rows [R] of the same items."""
        differs = {name: _differs(rows_a[name], rows_b[name]) for name in self._common}
        any_R = np.logical_or.reduce([*differs.values(), np.zeros(len(keys), bool)])
        self.found.data += int(other_inputs_R.sum())
        self.found.floats += int((any_R & ~other_inputs_R).sum())
        for name, differs_R in differs.items():
            if differs_R.any():
                column = self.found.columns.setdefault(name, ColumnDifference())
                column.items += int(differs_R.sum())
                column.greatest = max(column.greatest, _greatest(rows_a[name], rows_b[name]))
        for at in np.flatnonzero(any_R | other_inputs_R)[:_EXAMPLES_MAX]:
            kind = _DATA if other_inputs_R[at] else _FLOATS
            self._add_example(keys[at], kind, tuple(name for name, differs_R in differs.items() if differs_R[at]))

    def _add_example(self, key: bytes, kind: str, columns: tuple[str, ...]) -> None:
        if len(self.found.examples) < _EXAMPLES_MAX:
            self.found.examples.append(Example(decode_index_key(key, self._id_kind), kind, columns))


def _differs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the bytes of this column differ, for each row: bool [R]."""
    raw_a, raw_b = (np.ascontiguousarray(side).view(np.uint8).reshape(len(side), -1) for side in (a, b))
    differs_R: np.ndarray = (raw_a != raw_b).any(axis=1)
    return differs_R


def _greatest(a: np.ndarray, b: np.ndarray) -> float:
    """The greatest difference of two finite numbers; 0 if the column has none."""
    distances = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return float(np.nanmax(np.where(np.isfinite(distances), distances, 0.0), initial=0.0))
