"""Forged row changes: refused as strangers, never read outside of an array, and no row changes by them."""

import subprocess
import sys

import numba
import pytest

from schemas.ids import IdKind
from serving.engine.tables import tables
from tests.fuzz.rows import try_records

AT_ONCE = 1_000  # records into the same tables, which have room for their ids
KERNELS = ("decide_newer", "place_int64", "place_text", "find_int64")


@pytest.fixture(scope="module")
def checked() -> dict[str, object]:
    """The kernels that follow a decode, compiled with bounds checks: a read outside of an array is an IndexError."""
    return {name: numba.njit(nogil=True, boundscheck=True, _nrt=False)(getattr(tables, name).py_func) for name in KERNELS}


@pytest.mark.parametrize("kind", list(IdKind))
@pytest.mark.parametrize("records", [1_000, pytest.param(100_000, marks=pytest.mark.campaign)])
def test_forged_deltas_are_refused_and_the_kernels_stay_inside_their_arrays(
    kind: IdKind, records: int, checked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kernel in checked.items():
        monkeypatch.setattr(tables, name, kernel)
    for seed in range(records // AT_ONCE):
        found = try_records(seed, AT_ONCE, kind)
        assert found.refused > AT_ONCE // 10 and found.applied > AT_ONCE // 100


@pytest.mark.parametrize("records", [1_000, pytest.param(200_000, marks=pytest.mark.campaign)])
def test_forged_deltas_do_not_end_a_process_whose_kernels_check_nothing(records: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz.rows", str(records // AT_ONCE), str(AT_ONCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2_000:]}"
