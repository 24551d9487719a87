"""How old the statistics are, by the last report of `aif statistics`: for `aif status` on any machine."""

import time

from infra.kafka.admin import end_offsets, start_offsets
from infra.kafka.reader import read_topic
from infra.kafka.security import Bootstrap
from schemas.errors import AifError
from schemas.topics import STATISTICS_REPORTS

_DEADLINE_S = 3.0


def statistics_age_s(bootstrap: Bootstrap, prefix: str) -> float | None:
    """Seconds since the last report, by the broker's clock and this machine's; None without one. Raises as `read_topic`."""
    try:
        starts, ends = (offsets(bootstrap, prefix + STATISTICS_REPORTS, deadline_s=_DEADLINE_S) for offsets in (start_offsets, end_offsets))
    except AifError as error:
        if error.code != "unknown_topic":
            raise
        return None
    last = {partition: max(starts[partition], end - 1) for partition, end in ends.items()}
    records = list(read_topic(bootstrap, STATISTICS_REPORTS, start=last, end=ends, prefix=prefix, stall_s_max=_DEADLINE_S))
    return max(0.0, time.time() - records[-1].timestamp_ms / 1e3) if records else None
