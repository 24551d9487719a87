"""What it costs to refuse a JSON body: it is read in the event loop, and whoever sends nonsense must not keep everybody else waiting."""

import time
from collections.abc import Callable

import pytest

from schemas.errors import RejectedInput
from schemas.limits import BODY_BYTES_MAX, CANDIDATES_MAX
from schemas.requests import RankRequest
from serving.protocols.http_body import decode_body

MANY = CANDIDATES_MAX // 2


def rank(ids: bytes, more: bytes = b"") -> bytes:
    return b'{"user_id":1,"item_ids":[' + ids + b"]" + more + b"}"


def cpu_s(call: Callable[[], object]) -> float:
    """The least of three runs, as processor time of this thread."""

    def once() -> float:
        start_s = time.thread_time()
        call()
        return time.thread_time() - start_s

    return min(once() for _ in range(3))


def refuse(raw: bytes) -> None:
    with pytest.raises(RejectedInput):
        decode_body(RankRequest, raw)


WRONG: dict[str, Callable[[], bytes]] = {
    "no ids": lambda: rank(b",".join([b"1.5"] * MANY)),
    "unknown fields": lambda: rank(b"1", b"".join(b',"a%d":1' % place for place in range(8 * MANY))),
    "wrong features": lambda: rank(b"1", b',"context":{' + b",".join(b'"a%d":{}' % place for place in range(8 * MANY)) + b"}"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_body_costs_little_more_to_refuse_than_a_right_one_of_its_size_to_read(what: str) -> None:
    wrong = WRONG[what]()
    assert len(wrong) <= BODY_BYTES_MAX
    right = rank(b",".join(b"%d" % place for place in range(MANY)))
    right_s = cpu_s(lambda: decode_body(RankRequest, right)) * max(1.0, len(wrong) / len(right))
    assert cpu_s(lambda: refuse(wrong)) < 4 * right_s
