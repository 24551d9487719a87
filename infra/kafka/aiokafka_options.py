"""How aiokafka's clients connect to Kafka, Faust's too: the settings of security.py as that library wants them."""

import asyncio
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from infra.kafka.oauth import TokenSource
from infra.kafka.security import Bootstrap, as_connection, token_source


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # aiokafka has no types
    """A source of tokens as aiokafka asks for one."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def token(self) -> str:
        """A valid token. Raises Unavailable (`kafka_no_token`)."""
        return (await asyncio.to_thread(self._source.fetch))[0]


def aiokafka_options(bootstrap: Bootstrap) -> dict[str, Any]:
    """What every aiokafka client has in common. Raises as `client_config`."""
    connection = as_connection(bootstrap)
    security = connection.security
    options: dict[str, Any] = {"bootstrap_servers": connection.bootstrap_servers.split(","), "security_protocol": security.protocol}
    if security.tls:
        options["ssl_context"] = security.ssl_context()
    if security.sasl:
        options["sasl_mechanism"] = security.mechanism
        if security.mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = TokenProvider(token_source(security))
        else:
            options |= {"sasl_plain_username": security.username, "sasl_plain_password": security.secret("password")}
    return options
