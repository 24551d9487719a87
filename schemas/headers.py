"""Headers of the records that publishers send. Readers need none of them."""

from collections.abc import Sequence


def encode_headers(event_type: str, event_id: str, source: str, time_rfc3339: str) -> Sequence[tuple[str, bytes]]:
    """CloudEvents 1.0, Kafka binding, binary mode, plus the schema number of the payload."""
    pairs = {
        "ce_specversion": "1.0",
        "ce_type": event_type,
        "ce_id": event_id,
        "ce_source": source,
        "ce_time": time_rfc3339,
        "content-type": "application/json",
        "schema": "1",
    }
    return [(name, value.encode()) for name, value in pairs.items()]
