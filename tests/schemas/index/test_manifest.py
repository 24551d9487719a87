"""Seals and manifests: they survive JSON, and a changed byte is found."""

import pytest

from schemas.errors import Corrupted, Incompatible
from schemas.index.layout import row_layout
from schemas.index.manifest import (
    Manifest,
    Part,
    PartFile,
    Seal,
    checked_name,
    decode_manifest,
    decode_seal,
    encode_manifest,
    encode_seal,
    seal_path,
)
from tests.schemas.catalogue import small_spec


def seal(shard: int) -> Seal:
    full = Part(f"versions/7/full/{shard:05d}-0", (PartFile("000001.sst", 10, "c" * 64),), rows=3)
    return Seal(shard, full, Part("", (), 0), 5, {"item-features": 3, "new-items": 4}, 3, f"{shard:032x}", "d" * 32, "cpu")


RAW = encode_seal(seal(3))
PATH = seal_path(7, 1, 3, checked_name("0" * 12, RAW))
MANIFEST = Manifest(7, 1, "m", "a" * 64, "b" * 16, "l", "cpu", row_layout(small_spec()), (seal(0), seal(1)), 1)


def test_a_manifest_survives_json() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST and decode_seal(RAW, PATH) == seal(3)
    assert MANIFEST.rows == 6 and MANIFEST.digest != MANIFEST.data_digest


def test_a_manifest_that_is_not_the_published_one_is_corrupted() -> None:
    with pytest.raises(Corrupted, match="publish entry"):
        decode_manifest(encode_manifest(MANIFEST), expected_sha256="0" * 64)


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_a_cut_manifest_is_corrupted(cut: int) -> None:
    with pytest.raises(Corrupted, match="bad_manifest"):
        decode_manifest(encode_manifest(MANIFEST)[:cut])


def test_another_format_is_incompatible() -> None:
    with pytest.raises(Incompatible, match="format"):
        decode_manifest(encode_manifest(MANIFEST).replace(b'"format":2', b'"format":3'))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"name":"000001.sst"', b'"name":"../../000001.sst"'),
        (b'"sha256":"' + b"c" * 64 + b'"', b'"sha256":"../x"'),
        (b'"rows":3', b'"rows":-3'),
        (b'"rows":3', b'"rows":true'),
        (b'"rows":3', b'"rows":9223372036854775808'),
        (b'"shard":1', b'"shard":2'),
        (b'["vector","<f2",', b'["vector","<f4",'),
        (b'["category","<i4",1,1]', b'["category","<i4",7,1]'),
        (b'["category","<i4",1,1]', b'["vector","<f2",1,1]'),
        (b'["category","<i4",1,1]', b'["new","O",1,0]'),
        (b'["category","<i4",1,1]', b'["new","<f4",-1,0]'),
    ],
)
def test_a_manifest_with_values_that_no_worker_writes_is_corrupted(before: bytes, after: bytes) -> None:
    """Of these a reader would make files outside its folder, or arrays of other types and sizes than compiled code takes them for."""
    raw = encode_manifest(MANIFEST)
    assert before in raw
    with pytest.raises(Corrupted, match="bad_manifest"):
        decode_manifest(raw.replace(before, after))
