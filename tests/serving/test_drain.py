"""A front that is closed under load: what was taken is answered, what comes later finds nobody, nothing is cut."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.processes import port_is_free, wait_until
from schemas.errors import Unavailable
from serving.client import AifClient
from tests.serving.calls.test_user_rungs import SlowEngine, tell
from tests.serving.front import open_front


def test_requests_in_work_are_answered_while_the_port_takes_no_more() -> None:
    engine = SlowEngine()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as threads:
        front = stack.enter_context(open_front(engine))
        for user in range(4):
            tell(front, user, user)
        with AifClient(front.url) as client, AifClient(front.url) as late:
            waiting = [threads.submit(client.user, user, deadline_ms=20_000) for user in range(4)]
            wait_until(lambda: len(engine.held) == 4, 10, "the requests to be in work")
            closing = threads.submit(stack.close)
            wait_until(lambda: port_is_free(int(front.url.rpartition(":")[2])), 10, "the port to be closed")
            with pytest.raises(Unavailable):
                late.status()
            assert not any(one.done() for one in waiting)
            engine.release()
            assert [one.result().behaviours for one in waiting] == [1, 1, 1, 1]
            closing.result()
