"""The bounds on requests and bytes at once; every request gives its place back, however it ends."""

import pytest

from schemas.errors import Unavailable
from schemas.limits import BODIES_BYTES_MAX
from serving.protocols.front import Intake


def test_one_request_too_many_is_refused_and_its_place_is_given_back() -> None:
    intake = Intake(1)
    with intake.enter():
        intake.check()
        with pytest.raises(Unavailable, match="overloaded"), intake.enter():
            intake.check()
        intake.check()
    assert intake.in_work == 0


def test_bytes_beyond_the_bound_are_refused_and_given_back() -> None:
    intake = Intake(1)
    with intake.reading() as first:
        first(BODIES_BYTES_MAX)
        with pytest.raises(Unavailable, match="overloaded"), intake.reading() as second:
            second(1)
        assert intake.reading_bytes == BODIES_BYTES_MAX
    assert intake.reading_bytes == 0


def test_a_request_that_would_wait_too_long_is_refused_at_its_headers_and_not_again_after_its_body() -> None:
    def refuse() -> None:
        raise Unavailable("overloaded", "it would wait too long")

    intake = Intake(1)
    intake.admit = refuse
    with intake.enter():
        intake.check_number()
        with pytest.raises(Unavailable, match="would wait too long"):
            intake.check()
