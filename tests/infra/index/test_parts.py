"""Parts: what is read is exactly what was written, or an error that names the file."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.index.parts import (
    read_full_part,
    read_incremental_part,
    read_manifest,
    verify_part,
    write_full_part,
    write_incremental_part,
)
from infra.index.store import FolderStore
from schemas.errors import Corrupted, Unavailable
from schemas.index.control import VersionStatus
from schemas.index.layout import RowBlock, encode_increment
from schemas.index.lifecycle import State
from schemas.index.manifest import Manifest, Part, encode_manifest, manifest_path
from tests.infra.index_fixture import LAYOUT, rows_block


def _blocks(blocks: int = 20) -> list[RowBlock]:
    return [rows_block(1000 * i, 256 if i % 3 else 17) for i in range(blocks)]


def _increments(rows: int = 100) -> Iterator[tuple[bytes, bytes]]:
    block = rows_block(0, rows)
    for i, key in enumerate(block.keys):
        stamp = block.stamps[i].copy()
        stamp["dead"] = i % 4 == 0
        yield key, encode_increment(stamp, None if stamp["dead"] else block.rows[i])


def _snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_a_full_part_gives_back_its_blocks(store: FolderStore) -> None:
    part = write_full_part(store, 5, 2, _blocks(), LAYOUT)
    assert part.rows == sum(map(len, _blocks()))
    assert part.directory.startswith("versions/5/full/00002-")
    for read, written in zip(read_full_part(store, part, LAYOUT), _blocks(), strict=True):
        assert list(read.keys) == list(written.keys)
        assert read.stamps.tobytes() == written.stamps.tobytes()
        assert read.rows.tobytes() == written.rows.tobytes()


def test_an_incremental_part_gives_back_rows_and_tombstones_and_counts_them_apart(store: FolderStore) -> None:
    part = write_incremental_part(store, 5, 1, 0, _increments())
    assert (part.rows, part.tombstones) == (75, 25)
    assert part.directory.startswith("versions/5/1/incremental/00000-")
    assert list(read_incremental_part(store, part)) == list(_increments())


def test_parts_without_rows_have_no_files(store: FolderStore) -> None:
    full, incremental = write_full_part(store, 1, 0, [rows_block(0, 0)], LAYOUT), write_incremental_part(store, 1, 0, 0, [])
    assert full == incremental == Part("", (), 0)
    assert list(read_full_part(store, full, LAYOUT)) == list(read_incremental_part(store, incremental)) == []
    assert store.list() == []


def test_reading_never_touches_the_store_and_leaves_nothing_behind(store: FolderStore) -> None:
    part = write_full_part(store, 1, 0, _blocks(), LAYOUT)
    before = _snapshot(store.root)
    list(read_full_part(store, part, LAYOUT))
    half_read = read_full_part(store, part, LAYOUT)
    next(half_read)
    half_read.close()  # type: ignore[attr-defined]
    assert _snapshot(store.root) == before
    assert {Path(p).name for p in before} == {f.name for f in part.files}


def test_a_part_is_read_by_two_readers_at_the_same_time(store: FolderStore) -> None:
    part = write_full_part(store, 1, 0, _blocks(), LAYOUT)
    pairs = list(zip(read_full_part(store, part, LAYOUT), read_full_part(store, part, LAYOUT), strict=True))
    assert len(pairs) == 20


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_a_flipped_byte_in_any_file_is_found_before_the_first_row(store: FolderStore, place: int) -> None:
    part = write_full_part(store, 1, 0, _blocks(5), LAYOUT)
    for file in part.files:
        path = store.root / part.directory / file.name
        good = path.read_bytes()
        bad = bytearray(good)
        bad[len(bad) * place // 100] ^= 1
        path.write_bytes(bad)
        with pytest.raises(Corrupted, match=file.name):
            next(read_full_part(store, part, LAYOUT))
        path.write_bytes(good)
    verify_part(store, part)


@pytest.mark.parametrize("place", range(5, 100, 10))
def test_without_the_checksum_of_the_files_a_flipped_byte_still_never_gives_wrong_or_fewer_rows(store: FolderStore, place: int) -> None:
    written = _blocks(8)
    part = write_full_part(store, 1, 0, written, LAYOUT)
    path = store.root / part.directory / next(f.name for f in part.files if f.name.endswith(".sst"))
    bad = bytearray(path.read_bytes())
    bad[len(bad) * place // 100] ^= 1
    path.write_bytes(bad)
    try:
        read = list(read_full_part(store, part, LAYOUT, verify=False))
    except Corrupted:
        return
    assert [r.rows.tobytes() for r in read] == [w.rows.tobytes() for w in written]


def test_a_truncated_file_is_corrupted_and_a_missing_one_is_missing(store: FolderStore) -> None:
    part = write_full_part(store, 1, 0, _blocks(5), LAYOUT)
    for file in part.files:
        path = store.root / part.directory / file.name
        kept = path.read_bytes()
        os.truncate(path, file.size_bytes // 2)
        with pytest.raises(Corrupted, match="bytes, its manifest says"):
            list(read_full_part(store, part, LAYOUT))
        path.unlink()
        with pytest.raises(Unavailable, match="missing_file"):
            list(read_full_part(store, part, LAYOUT))
        path.write_bytes(kept)


def test_counts_that_do_not_match_the_manifest_are_corrupted(store: FolderStore) -> None:
    full = write_full_part(store, 1, 0, _blocks(3), LAYOUT)
    with pytest.raises(Corrupted, match="bad_part_count"):
        list(read_full_part(store, Part(full.directory, full.files, full.rows + 1), LAYOUT))
    incremental = write_incremental_part(store, 1, 0, 0, _increments())
    with pytest.raises(Corrupted, match="tombstones"):
        list(read_incremental_part(store, Part(incremental.directory, incremental.files, incremental.rows, 0)))


def test_blocks_out_of_key_order_are_not_written(store: FolderStore) -> None:
    for blocks in ([rows_block(1000, 5), rows_block(0, 5)], [rows_block(0, 5), rows_block(4, 5)]):
        with pytest.raises(Corrupted, match="unsorted_block"):
            write_full_part(store, 1, 0, blocks, LAYOUT)
    assert store.list() == []


def test_a_part_whose_manifest_names_another_folder_is_refused(store: FolderStore, tmp_path: Path) -> None:
    part = write_full_part(store, 1, 0, _blocks(2), LAYOUT)
    shutil.copytree(store.root / part.directory, tmp_path / "elsewhere")
    with pytest.raises(Corrupted, match="bad_store_path"):
        list(read_full_part(store, Part("../elsewhere", part.files, part.rows), LAYOUT))


def test_a_manifest_is_read_only_if_it_is_the_published_one(store: FolderStore) -> None:
    import hashlib

    manifest = Manifest(3, 1, "m", "a" * 64, "b" * 16, "l", "e", LAYOUT, (), 0)
    raw = encode_manifest(manifest)
    store.put_bytes(manifest_path(3, 1), raw)
    status = VersionStatus(3, State.LIVE, revision=1, manifest_sha256=hashlib.sha256(raw).hexdigest())
    assert read_manifest(store, status) == manifest
    os.truncate(store.local_path(manifest_path(3, 1)), len(raw) - 5)
    with pytest.raises(Corrupted, match="bad_manifest"):
        read_manifest(store, status)
    with pytest.raises(Unavailable, match="not_published"):
        read_manifest(store, VersionStatus(3, State.WANTED))
