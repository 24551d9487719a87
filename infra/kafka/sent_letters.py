"""Which updates of an input topic have a dead letter already, for a process that is about to send one.

Invariants: an update is known by its place and a checksum of its record's value, because the same place is another record after a topic was made again. Memory
is bounded: the newest `_KNOWN_MAX` updates are known. A second letter of an older one is harmless, because every reader counts a place once (redrive.py).
"""

import zlib
from collections import OrderedDict
from collections.abc import Mapping

from infra.kafka.admin import end_offsets
from infra.kafka.dead_letters import dead_letter_topic, decode_dead_letter, truncate_oversized
from infra.kafka.reader import SourceRecord, read_topic
from infra.kafka.security import Bootstrap
from schemas.errors import Corrupted

_KNOWN_MAX = 100_000  # 20 MB
_ANSWER_S_MAX = 5.0  # a topic that is not there is asked for so long
Letter = tuple[int, int, int, int]  # partition, offset, index, checksum


class SentLetters:
    """The dead letters of one input topic as far as `look` has read. For one thread."""

    def __init__(self, bootstrap: Bootstrap, prefix: str, topic: str) -> None:
        self._bootstrap, self._prefix, self._topic = bootstrap, prefix, topic
        self._known: OrderedDict[Letter, None] = OrderedDict()
        self._read_to: Mapping[int, int] | None = None

    def look(self) -> None:
        """Read new letters. Raises AifError if the topic cannot be read; then nothing is known, and the next call begins at the start of the topic."""
        known, start = self._known, self._read_to
        self._known, self._read_to = OrderedDict(), None
        name = dead_letter_topic(self._topic)
        ends = end_offsets(self._bootstrap, self._prefix + name, deadline_s=_ANSWER_S_MAX)
        for record in read_topic(self._bootstrap, name, start=start, end=ends, prefix=self._prefix, stall_s_max=_ANSWER_S_MAX):
            self._note(known, record)
        self._known, self._read_to = known, ends

    def has(self, record: SourceRecord, index: int) -> bool:
        """Whether update `index` of a record has a dead letter, as far as is known."""
        return (record.partition, record.offset, index, zlib.crc32(truncate_oversized(record).value or b"")) in self._known

    def _note(self, known: OrderedDict[Letter, None], record: SourceRecord) -> None:
        try:
            source = decode_dead_letter(list(record.headers))
        except Corrupted:
            return
        if source.topic == self._topic:
            known[source.partition, source.offset, source.index, zlib.crc32(record.value or b"")] = None
            if len(known) > _KNOWN_MAX:
                known.popitem(last=False)
