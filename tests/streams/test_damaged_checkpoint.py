"""A worker that starts where the store's copy of the live version's checkpoint is damaged, on a real broker with a backlog. It names the fault and takes no
record that it could not write rows for; a new checkpoint is the way out."""

import json

import pytest

from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from infra.processes import wait_until
from schemas.events import ItemFeaturesUpdate
from schemas.ids import partition_of
from schemas.index.lifecycle import State
from schemas.index.manifest import checkpoint_path
from schemas.topics import ITEM_FEATURES
from tests.streams.version_world import checkpoint_bytes
from tests.streams.worker_stage import KILLED, SHARDS, WAIT_S, WorkerStage, kill_hard, stop_cleanly

ITEMS = 100
BACKLOG = 20_000  # records of a shard: more than all queues between the broker and a shard hold, 2 x 32 runs of 250


def live(stage: WorkerStage) -> int | None:
    return ControlLog(open_index_store(str(stage.directory / "index"))).refresh().live


def publish_backlog(stage: WorkerStage) -> None:
    one_of = {partition_of(i, SHARDS): i for i in range(ITEMS)}
    for shard, item in one_of.items():
        values = [
            json.dumps({"schema": 1, "updates": [{"op": "upsert", "item_id": item, "version": v, "features": {"price": 1.0}}]}).encode()
            for v in range(2, BACKLOG + 2)
        ]
        stage.publish_raw(
            ITEM_FEATURES, [(shard, str(item).encode(), value) for value in values], **{"queue.buffering.max.messages": BACKLOG}
        )


@pytest.mark.timeout(240)
def test_a_new_checkpoint_replaces_a_live_one_whose_copy_is_damaged(stage: WorkerStage) -> None:
    stage.settings = {"AIF_CANARY__ENABLED": "false", **KILLED}
    worker = stage.start_ready()
    with stage.publisher() as publisher:
        publisher.publish_items(ItemFeaturesUpdate(op="upsert", item_id=i, version=1, features={"price": 1.0 + i}) for i in range(ITEMS))
    stage.publish_checkpoint(checkpoint_bytes(0))
    wait_until(lambda: live(stage) == 0, WAIT_S, f"version 0 to be live; log: {worker.log_tail()}")
    kill_hard(worker)
    store = open_index_store(str(stage.directory / "index"))
    status = ControlLog(store).refresh().versions[0]
    assert status.state is State.LIVE
    copy = stage.directory / "index" / checkpoint_path(status.checkpoint_sha256)
    copy.write_bytes(bytes(copy.read_bytes()[:-1]) + b"\xff")
    worker = stage.start()
    wait_until(lambda: "checkpoint" in stage.log() and "is damaged" in stage.log(), WAIT_S, f"the reason; log: {worker.log_tail()}")
    publish_backlog(stage)
    stage.publish_checkpoint(checkpoint_bytes(1))
    wait_until(lambda: live(stage) == 1, WAIT_S, f"version 1 to be live; log: {worker.log_tail()}")
    stage.wait_applied(worker)
    assert stop_cleanly(worker) == 0
