"""A dataclass reads back from the JSON of its fields, and nothing but values of their types does."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import pytest

from schemas.errors import Corrupted
from schemas.fields import corrupted_as, read_fields
from schemas.ids import INT64_MAX, IdKind


@dataclass(frozen=True)
class Inner:
    count: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    kind: IdKind
    is_on: bool
    inner: Inner | None
    pair: tuple[int, float] = (0, 0.0)
    many: tuple[Inner, ...] = ()
    by_number: Mapping[int, Mapping[str, int]] = field(default_factory=dict)


WHOLE = Outer(IdKind.TEXT, True, Inner(INT64_MAX), (3, 1.0), (Inner(1), Inner(2, 2.5)), {7: {"a": 1}})


def test_what_was_written_reads_back() -> None:
    assert read_fields(Outer, json.loads(json.dumps(asdict(WHOLE)))) == WHOLE
    assert read_fields(Outer, {"kind": "int64", "is_on": False, "inner": None}) == Outer(IdKind.INT64, False, None)
    assert read_fields(Inner, {"count": -1, "share": 2}, least=-1) == Inner(-1, 2.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "else"}, {"kind": None}, {"is_on": 1}, {"inner": {"count": True}}, {"inner": {"count": -1}}, {"inner": {"count": 1 << 63}},
        {"inner": {"count": 1.0}}, {"inner": {"count": 1, "more": 1}}, {"inner": {}}, {"inner": [1]}, {"inner": {"count": 1, "share": "1"}}, {"pair": [1]},
        {"pair": [1, 1.0, 1.0]}, {"many": {"count": 1}}, {"many": [None]}, {"by_number": {"x": {}}}, {"by_number": {"1": {"a": None}}}, {"unknown": 1},
    ],
)  # fmt: skip
def test_another_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_fields(Outer, json.loads(json.dumps(asdict(WHOLE))) | wrong)


@pytest.mark.parametrize(
    ("data", "said"),
    [("{}", "'count' is missing"), ("{", "Expecting property name"), ("[" * 100_000, "recursion"), ('{"count": 1e999}', "infinity")],
)
def test_bytes_of_another_form_are_corrupted_and_the_reason_is_said(data: str, said: str) -> None:
    with (
        pytest.raises(Corrupted, match=f"bad_file: the file does not read: .*{said}.*; restore it"),
        corrupted_as("bad_file", "the file does not read", "restore it"),
    ):
        int(json.loads(data)["count"])
