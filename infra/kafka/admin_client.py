"""The client behind every question about the cluster: topics, offsets, groups."""

from collections import deque
from functools import partial
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from infra.kafka.security import Bootstrap, client_config, refusal
from schemas.errors import AifError, Unavailable


class KafkaAdmin:
    """`client`, and the last refusal of its connections. Raises Misconfigured as `client_config`.

    No cycle of references leads back to `client`: its threads, sockets and pipes end with its last reference, because a worker's collector rarely runs.
    """

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._bootstrap = bootstrap
        self._heard = deque[KafkaError](maxlen=1)
        self.client = AdminClient(
            {
                **client_config(bootstrap, partial(_note, self._heard)),
                "reconnect.backoff.max.ms": 1_000,
                "allow.auto.create.topics": False,  # or a question about a missing topic would make one where a broker allows it
            }
        )

    def refusal(self, error: KafkaError, what: str) -> AifError | None:
        """The error where the broker, or TLS, refuses this client; None for any other. A request behind a refused login only times out, so the reason is that
        of the connection."""
        self.client.poll(0)
        return refusal(self._bootstrap, error, what) or (refusal(self._bootstrap, self._heard[0], what) if self._heard else None)

    def unreachable(self, error: KafkaError, what: str) -> AifError:
        """The error for a question about `what` without an answer."""
        step = "is it up (`aif broker status`)?"
        return self.refusal(error, what) or Unavailable("kafka_unreachable", f"broker {self._bootstrap}: {error.str()}; {step}")


def _note(heard: deque[KafkaError], error: Any) -> None:
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
        heard.append(error)
