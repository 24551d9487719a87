"""Ends of topics, asked for as a server does: again, where the broker is slow, or refuses a client that knows the leaders before a restart."""

import contextlib
import time

from infra.kafka.admin_client import EndReader
from schemas.errors import Unavailable


def read_ends(reader: EndReader, topic: str, partitions: int) -> list[int]:
    for _ in range(30):
        with contextlib.suppress(Unavailable):
            return reader.read(topic, partitions)
        time.sleep(0.5)
    raise AssertionError("no ends in 30 tries")
