"""Finished slices of a full part that is being built, from which a killed build continues.

    00000.sst, 00000.json    rows of the first SLICE_ITEMS items, and what they are: last key, rows, checksum, source offsets
    00001.sst, ...           the items after that key

Invariants: a slice counts only if it has its JSON file, which is written when the slice is on disk. Both must belong to this build: same version, checkpoint
and encoder. Slices may come from several checkpoints of the shard, if the shard wrote increments of the version when each was taken (B6). The increments have
the rows that a slice lacks. So the part is as old as its oldest slice.
The folder belongs to one process and may vanish at any time: that costs only time.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.files import sha256_of_file, write_file_durably
from infra.index.parts import put_full_slices, write_full_slice
from infra.index.store import IndexStore
from schemas.index.layout import RowBlock, RowLayout
from schemas.index.manifest import Part
from streams.builders.jobs import BuildJob, BuildResult

SLICE_ITEMS = 65_536


@dataclass(frozen=True, slots=True)
class Slice:
    """One finished slice. `reused`: rows of it that were taken over from the job's base."""

    last_key: bytes
    rows: int
    reused: int
    source_offsets: Mapping[str, int]


class BuildSlices:
    """The slices of one build. Those that an earlier attempt has left are found at the start. One writer."""

    def __init__(self, folder: Path, job: BuildJob, layout: RowLayout) -> None:
        self._folder, self._job, self._layout = folder, job, layout
        self._build = [job.version, job.shard, job.checkpoint_sha256, job.encoder_fingerprint, job.rewrite]
        self.slices: list[Slice] = []
        folder.mkdir(parents=True, exist_ok=True)
        while (found := self._find(len(self.slices))) is not None:
            self.slices.append(found)

    @property
    def next_key(self) -> bytes:
        """Where the next slice begins: the smallest key after the last one."""
        return self.slices[-1].last_key + b"\0" if self.slices else b""

    @property
    def rows(self) -> int:
        """Rows of all finished slices."""
        return sum(s.rows for s in self.slices)

    def add(self, blocks: Iterable[RowBlock], source_offsets: Mapping[str, int], count_reused: Callable[[], int]) -> None:
        """Writes the next slice: rows of the items from `next_key` on, at least one. `count_reused` is asked when all have been read."""
        place = self._path(len(self.slices), "sst")
        rows, last_key = write_full_slice(place, blocks, self._layout)
        reused = count_reused()
        said = {"build": self._build, "next_key": self.next_key.hex(), "last_key": last_key.hex(), "rows": rows, "reused": reused}
        said |= {"sha256": sha256_of_file(place), "source_offsets": dict(source_offsets)}
        write_file_durably(self._path(len(self.slices), "json"), json.dumps(said).encode())
        self.slices.append(Slice(last_key, rows, reused, dict(source_offsets)))

    def finish(self, store: IndexStore, source_offsets: Mapping[str, int]) -> BuildResult:
        """Puts the part into the store. `source_offsets` are those of the newest checkpoint. The folder is left for `remove`."""
        paths = [self._path(n, "sst") for n in range(len(self.slices))]
        part: Part = put_full_slices(store, self._job.version, self._job.shard, paths, self.rows)
        oldest = {t: min([at, *(s.source_offsets[t] for s in self.slices)]) for t, at in source_offsets.items()}
        return BuildResult(part, oldest, sum(s.reused for s in self.slices))

    def _find(self, number: int) -> Slice | None:
        """The slice with this number, the next one; None if it is not finished, not of this build, or does not begin where the one before it ends."""
        try:
            said: dict[str, Any] = json.loads(self._path(number, "json").read_bytes())
            fresh = all(said["source_offsets"][t] >= at for t, at in self._job.from_offsets.items())
            follows = said["next_key"] == self.next_key.hex()
            if said["build"] != self._build or not follows or not fresh or sha256_of_file(self._path(number, "sst")) != said["sha256"]:
                return None
            return Slice(bytes.fromhex(said["last_key"]), said["rows"], said["reused"], said["source_offsets"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _path(self, number: int, suffix: str) -> Path:
        return self._folder / f"{number:05d}.{suffix}"


def slices_folder(folder: Path, shard: int, version: int) -> Path:
    """Where the slices of one build are kept."""
    return folder / f"{shard:05d}-{version}"


def remove_slices(folder: Path | None, shard: int, version: int) -> None:
    """Removes the slices of a build that is over."""
    if folder is None:
        return
    shutil.rmtree(slices_folder(folder, shard, version), ignore_errors=True)


def remove_other_slices(folder: Path, versions: Iterable[int]) -> None:
    """Remove the slices of builds of other versions than these."""
    kept = {f"-{version}" for version in versions}
    for path in folder.iterdir() if folder.is_dir() else ():
        if not any(path.name.endswith(end) for end in kept):
            shutil.rmtree(path, ignore_errors=True)
