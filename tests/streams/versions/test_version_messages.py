"""Dead letters of checkpoint records."""

import uuid

import pytest

from infra.kafka.admin import apply_topics
from infra.kafka.reader import SourceRecord, read_topic
from schemas.decoding import Rejection
from schemas.errors import Unavailable
from schemas.limits import RECORD_BYTES_MAX
from schemas.topics import DEAD_LETTER_PREFIX, MODEL_CHECKPOINTS
from streams.versions.version_messages import VersionMessages


def test_the_largest_record_that_the_topic_takes_gets_a_dead_letter(bootstrap_servers: str) -> None:
    """A letter that cannot be sent is tried permanently, and no later checkpoint is decided meanwhile (I6)."""
    prefix = f"letters-{uuid.uuid4().hex[:12]}."
    apply_topics(bootstrap_servers, prefix, 1, 1)
    record = SourceRecord(MODEL_CHECKPOINTS, 0, 0, b"", b"x" * RECORD_BYTES_MAX)
    with VersionMessages(bootstrap_servers, prefix) as messages:
        messages.send_dead_letter(record, Rejection(0, "bad_json", "it does not read", "malformed"))
    assert [letter.value for letter in read_topic(bootstrap_servers, DEAD_LETTER_PREFIX + MODEL_CHECKPOINTS, prefix=prefix)] == [
        record.value
    ]


def test_a_letter_that_the_broker_does_not_take_is_named_with_its_reason(bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later checkpoint is decided meanwhile, and the message asked whether the broker was up."""
    monkeypatch.setattr("streams.versions.version_messages._ACKNOWLEDGED_S_MAX", 2.0)
    with (
        VersionMessages(bootstrap_servers, f"letters-{uuid.uuid4().hex[:12]}.") as messages,
        pytest.raises(Unavailable, match=r"dead_letter_not_sent: .* within 2 s.*; see `aif doctor`"),
    ):
        messages.send_dead_letter(
            SourceRecord(MODEL_CHECKPOINTS, 0, 0, b"", b"x"), Rejection(0, "bad_json", "it does not read", "malformed")
        )
