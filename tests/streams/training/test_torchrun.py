"""`aif train` under torchrun, two agents on one machine: a killed process is started again, and the weights are those of `--processes`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.kafka.admin import apply_topics
from infra.processes import free_ports, wait_until
from schemas.ids import IdKind
from schemas.model.checkpoint import read_checkpoint
from streams.training.topic_events import TopicEvents
from streams.training.topic_snapshot import write_snapshot
from tests.streams.training.shop import publish_shop
from tests.streams.training.test_training_program import AIF, write_model

STEPS, WAIT_S = 60, 500.0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.campaign  # five processes that import torch, and a restart
@pytest.mark.timeout(1_800)
def test_two_agents_of_torchrun_give_the_weights_of_two_processes_after_one_was_killed(
    bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    log = TopicEvents(bootstrap_servers, topic_prefix, 2, 2, IdKind.INT64)
    write_snapshot(tmp_path / "snapshot", log, log.range_now())
    model, state, port = write_model(tmp_path, IdKind.INT64), tmp_path / "train.state", free_ports(1)[0]
    train = ["train", "--model", str(model), "--snapshot", str(tmp_path / "snapshot"), "--steps", str(STEPS), "--more", "1"]
    subprocess.run([*AIF, *train, "--processes", "2", "--out", str(tmp_path / "a")], check=True, capture_output=True, timeout=WAIT_S)
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    agent = [sys.executable, "-m", "torch.distributed.run", *meeting, "--local-addr", "127.0.0.1", "--max-restarts", "2", "--no-python"]
    command = [*agent, *AIF, *train, "--state", str(state), "--out", str(tmp_path / "b")]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (tmp_path / "agents.log").open("w") as output:
        agents = [subprocess.Popen(command, env=environment, stdout=output, stderr=output) for _ in range(2)]
    try:
        wait_until(state.exists, WAIT_S, "a state of the fit")
        (worker,) = children_of(agents[1].pid)
        os.kill(worker, signal.SIGKILL)
        told = [agent.wait(WAIT_S) for agent in agents]
    finally:
        for pid in [pid for agent in agents if agent.poll() is None for pid in (*children_of(agent.pid), agent.pid)]:
            os.kill(pid, signal.SIGKILL)
    assert told == [0, 0], (tmp_path / "agents.log").read_text()[-3000:]
    for number in range(2):
        alone, together = (read_checkpoint(tmp_path / folder / f"aif-{number:04d}.safetensors").info for folder in ("a", "b"))
        assert alone.tensors_sha256 == together.tensors_sha256
    assert "exitcode: -9" in (tmp_path / "agents.log").read_text()
