"""Why offsets of a log have no record: transactions took them, or the log lost them.

librdkafka passes over markers and aborted records without a word, and over lost records too. Only the batches distinguish them: each names the offsets that
it covers, and whether it belongs to a transaction.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from infra.closeable import Closeable
from infra.kafka.reader import SourceRecord
from infra.kafka.security import Bootstrap
from schemas.errors import Unavailable

_ANSWER_MS_MAX = 5_000
_FETCH_BYTES = 64 * 1024  # the broker sends at least one batch, whatever its size
_READ_UNCOMMITTED = 0
_PAUSE_S = 0.1


class LogGaps(Closeable):
    """One connection, opened at the first question. For one thread, in which no event loop runs."""

    def __init__(self, bootstrap: Bootstrap, deadline_s: float = 5.0) -> None:
        self._bootstrap, self._deadline_s = bootstrap, deadline_s
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def skipped_to(self, topic: str, partition: int, begin: int, end: int) -> int:
        """The first offset of `begin` to before `end` that no transaction took; `end` if transactions took all. `topic` is the whole name.

        To be asked of offsets without a record only. Raises Unavailable (`kafka_failed`).
        """
        from aiokafka.errors import KafkaError

        loop = self._loop = self._loop or asyncio.new_event_loop()
        give_up = time.monotonic() + self._deadline_s
        while True:
            try:
                return loop.run_until_complete(self._find(topic, partition, begin, end))
            except (KafkaError, OSError) as error:
                self._disconnect()
                if time.monotonic() > give_up:
                    reason = f"{topic} partition {partition}: offsets {begin} to {end} not read ({error!r}); is the broker up?"
                    raise Unavailable("kafka_failed", reason) from error
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        if self._loop is not None:
            self._loop.close()

    async def _find(self, topic: str, partition: int, begin: int, end: int) -> int:
        at = begin
        while at < end:
            batches = await self._fetch(topic, partition, at)
            before = at
            while at < end and batches.has_next():
                batch = batches.next_batch()
                if batch.base_offset > at or not (batch.is_control_batch or batch.is_transactional):
                    return at
                at = max(at, batch.next_offset)
            if at == before:
                return at
        return end

    async def _fetch(self, topic: str, partition: int, offset: int) -> Any:
        from aiokafka.errors import OffsetOutOfRangeError, for_code
        from aiokafka.protocol.fetch import FetchRequest
        from aiokafka.record.memory_records import MemoryRecords
        from aiokafka.structs import TopicPartition

        client = await self._connect(topic)
        node = client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if node is None or node < 0:
            raise OSError("it has no leader")
        asked = FetchRequest(_ANSWER_MS_MAX, 1, _FETCH_BYTES, _READ_UNCOMMITTED, [(topic, [(partition, offset, _FETCH_BYTES)])])
        answer = await client.send(node, asked)
        ((_, ((_, error, *_, raw),)),) = answer.topics
        if error == OffsetOutOfRangeError.errno:  # the log no longer has it
            return MemoryRecords(b"")
        if error:
            raise for_code(error)()
        return MemoryRecords(raw)

    async def _connect(self, topic: str) -> Any:
        from aiokafka.client import AIOKafkaClient

        from infra.kafka.aiokafka_options import aiokafka_options

        if self._client is None:
            client = AIOKafkaClient(**aiokafka_options(self._bootstrap), request_timeout_ms=2 * _ANSWER_MS_MAX)
            try:
                await client.bootstrap()
            except BaseException:
                await client.close()
                raise
            self._client = client
        await self._client.set_topics([topic])
        return self._client

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is not None:
            self._loop.run_until_complete(client.close())


def with_skipped_offsets(
    records: Iterable[SourceRecord], bootstrap: Bootstrap, prefix: str, topic: str, partition: int, begin: int, end: int
) -> Iterator[SourceRecord]:
    """The records of a partition from `begin` to before `end`, and between them a skipped one for every offset that a transaction took. Raises as
    `LogGaps.skipped_to`."""
    with LogGaps(bootstrap) as gaps:

        def skipped(at: int, until: int) -> Iterator[SourceRecord]:
            to = gaps.skipped_to(prefix + topic, partition, at, until) if at < until else at
            return (SourceRecord(topic, partition, offset, None, None, skipped=True) for offset in range(at, to))

        at = begin
        for record in records:
            yield from skipped(at, record.offset)
            yield record
            at = record.offset + 1
        yield from skipped(at, end)
