"""A disk that takes no writes is logged once, again while it lasts, and when it is over."""

import pytest

from infra.disk_faults import DiskFaults
from schemas.errors import AifError, Unavailable


def test_a_fault_is_logged_once_in_half_a_minute_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    now, full = [0.0], Unavailable("disk_full", "no space left on device")
    caplog.set_level("WARNING")
    told: list[AifError | None] = []
    faults = DiskFaults("shard 3", lambda: now[0], told.append)
    faults.note_success()
    for now[0] in range(40):
        faults.note_fault(full)
        faults.note_success()  # a small write had room
        assert faults.last is full
    assert caplog.text.count("disk_fault: shard 3 has waited") == 2 and "no space left" in caplog.text
    now[0] = 41.0
    faults.note_success()
    faults.note_success()
    assert faults.last is None and caplog.text.count("disk_fault_over: shard 3 writes again after 41 s") == 1
    assert told == [full, full, None]
