"""Topics that somebody deletes under a running system."""

import time
from collections.abc import Iterable

from confluent_kafka.admin import AdminClient


def delete_topics(bootstrap: str, names: Iterable[str]) -> None:
    """Removes topics (whole names) with their records, and returns when they are gone. Names that do not exist are fine."""
    admin, wanted = AdminClient({"bootstrap.servers": bootstrap}), set(names)
    while there := sorted(wanted & set(admin.list_topics(timeout=10).topics)):
        for future in admin.delete_topics(there).values():
            future.exception()  # what is still there is asked for again
        time.sleep(0.05)
