"""The time that a request has, and the work that is given up when it is over."""

import asyncio
import time
from concurrent.futures import Future

import pytest

from schemas.errors import Unavailable
from serving.calls.deadline import Deadline


@pytest.mark.parametrize("ago_s", [0.0, 10.0])
def test_work_is_given_up_when_the_time_is_over_and_also_when_it_was_over_before_the_wait_began(ago_s: float) -> None:
    work: Future[None] = Future()
    with pytest.raises(Unavailable, match="deadline_passed"):
        asyncio.run(Deadline(time.monotonic() - ago_s, 20).wait_for(work))
    assert work.cancelled()
