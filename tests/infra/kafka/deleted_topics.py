"""Topics that somebody deletes under a running system."""

from collections.abc import Iterable

from infra.kafka.admin import _Broker


def delete_topics(bootstrap: str, names: Iterable[str]) -> None:
    """Removes topics (whole names) with their records, and returns when they are gone. Names that do not exist are fine."""
    _Broker(bootstrap, 30.0).delete(set(names))
