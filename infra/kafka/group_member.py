"""Ends the membership of a process that was killed, so that its group does not wait for the session timeout.

A member that is killed cannot leave its group. Until its session times out, a rebalance waits for it, and with it every other member. So a process keeps its
member id in its directory. The next process that holds the directory, which proves that the former one has ended, leaves the group in its name.
Leaving for a member that lives is harmless: it joins again. Faust's client cannot be a static member of its group, which would be the usual way.
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from infra.kafka.aiokafka_options import aiokafka_options
from infra.kafka.security import Bootstrap
from schemas.errors import AifError

MEMBER_NAME = "member"
_ANSWER_S_MAX = 5.0
_log = logging.getLogger("aif.kafka.group")


def keep_member(folder: Path, member_id: str) -> None:
    """Write the id of this process in its group. Without it the next process waits for the session timeout."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MEMBER_NAME).write_text(member_id)


def end_former_member(bootstrap: Bootstrap, group: str, folder: Path) -> None:
    """Leave the group in the name of the former process of this folder, if it kept its id. For a thread in which no event loop runs.

    An error is logged only: the group then waits for the session timeout.
    """
    from aiokafka.errors import KafkaError

    file = folder / MEMBER_NAME
    try:
        member_id = file.read_text()
        file.unlink()
        asyncio.run(asyncio.wait_for(_leave(bootstrap, group, member_id), _ANSWER_S_MAX))
    except FileNotFoundError:
        return
    except (AifError, KafkaError, OSError, ValueError, TimeoutError) as error:
        _log.info("former member not ended: %r; the group waits for its session timeout", error)


async def _leave(bootstrap: Bootstrap, group: str, member_id: str) -> None:
    from aiokafka.client import AIOKafkaClient, CoordinationType
    from aiokafka.protocol.group import LeaveGroupRequest

    client = AIOKafkaClient(**aiokafka_options(bootstrap))
    try:
        await client.bootstrap()
        node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        await client.send(node, LeaveGroupRequest(group, member_id))
    finally:
        await client.close()
