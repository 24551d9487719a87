"""How old the statistics are, by the last report of `aif statistics`: for `aif status` on any machine."""

import time

from infra.kafka.reader import read_newest
from infra.kafka.security import Bootstrap
from schemas.topics import STATISTICS_REPORTS

_DEADLINE_S = 3.0


def statistics_age_s(bootstrap: Bootstrap, prefix: str) -> float | None:
    """Seconds since the last report, by the broker's clock and this machine's; None without one. Raises as `read_newest`."""
    records = list(read_newest(bootstrap, STATISTICS_REPORTS, 1, prefix=prefix, deadline_s=_DEADLINE_S))
    return max(0.0, time.time() - records[-1].timestamp_ms / 1e3) if records else None
