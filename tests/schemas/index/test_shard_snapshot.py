"""The manifest of a shard's snapshot: golden bytes, round trip, refusals."""

import pytest

from schemas.errors import Corrupted, Incompatible
from schemas.index.manifest import PartFile
from schemas.index.shard_snapshot import ShardSnapshot, decode_snapshot, encode_snapshot, snapshot_file_path, snapshot_manifest_path

SNAPSHOT = ShardSnapshot(3, "", "whose", (PartFile("000007.sst", 9, "a" * 64),), {"item-features": 5, "new-items": 2}, 7, ("p",)).named(
    "0123456789ab"
)
GOLDEN = (
    b'{"files":[{"name":"000007.sst","sha256":"' + b"a" * 64 + b'","size_bytes":9}],"format":2,"identity":"whose","kind":"snapshot",'
    b'"next_offsets":{"item-features":5,"new-items":2},"parts":["p"],"shard":3,"unique":"0123456789ab-6c69487206413d5a","updates":7}'
)


def test_the_bytes_are_what_the_format_says() -> None:
    assert encode_snapshot(SNAPSHOT) == GOLDEN and decode_snapshot(GOLDEN) == SNAPSHOT


def test_its_places_are_inside_its_own_folder() -> None:
    assert snapshot_manifest_path(3, "0123456789ab") == "snapshots/00003/0123456789ab/snapshot.json"
    assert snapshot_file_path(SNAPSHOT, "000007.sst") == "snapshots/00003/0123456789ab-6c69487206413d5a/files/000007.sst"


def test_other_bytes_are_refused_by_name() -> None:
    with pytest.raises(Corrupted, match="bad_snapshot"):
        decode_snapshot(b"{")
    with pytest.raises(Corrupted, match="bad_snapshot"):
        decode_snapshot(GOLDEN.replace(b'"updates"', b'"upd"'))
    with pytest.raises(Incompatible, match="snapshot_format"):
        decode_snapshot(GOLDEN.replace(b'"format":2', b'"format":3'))


def test_a_flipped_bit_is_found() -> None:
    for bit in range(8 * len(GOLDEN)):
        flipped = bytearray(GOLDEN)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corrupted, Incompatible), match="snapshot"):
            decode_snapshot(bytes(flipped))
