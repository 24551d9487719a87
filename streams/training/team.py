"""A fit in several processes: torch's DDP over gloo, with the gradients that one process has for the whole batch.

Here: `fit_in_processes`, whose processes are started here on one machine, and `open_group`, the processes of any machines that `torchrun` started. Not here:
the loop and the step (trainer.py), which every process runs as it would alone.
All processes draw the same batch, and each computes the logits of its share of the requests. The logits of the others are gathered, so every process has the
loss of the whole batch, with gradient through its own share only. (The parts of the loss are means over requests with pairs, over shown items, or over
positives. So a mean of the shares' losses would be another loss.) DDP sums the gradients, and all processes take the same step. Each process holds the data.
The first one leads: it alone keeps the state, and shares it with the others. When a process dies, the others end with `team_failed`. `torchrun` starts all of
them again, perhaps fewer, and they continue from that state.

Arrays: B requests, C shown items, T tasks.
"""

import copy
import datetime as dt
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from schemas.errors import Misconfigured, Unavailable
from schemas.model.inputs import map_tensors
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.impressions import Batch, TrainingSet
from streams.training.trainer import Team, TrainReport, fit, task_logits
from streams.training.trainer_state import StateFile

T = TypeVar("T")
_SILENT_S_MAX = 300.0  # a process that does not answer for this long counts as dead
_STOP_S_MAX = 30.0


def fit_in_processes(
    network: AifNetwork,
    data: TrainingSet,
    chosen: TrainChoices,
    processes: int,
    progress: Callable[[float], None] = lambda _: None,
    states: StateFile | None = None,
) -> TrainReport:
    """`fit` with the work shared by `processes`, led by this one. Raises as `fit`, and Unavailable (`team_failed`)."""
    with tempfile.TemporaryDirectory(prefix="aif-team-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        context = multiprocessing.get_context("spawn")
        others = [
            context.Process(target=_run_rank, args=(rank, processes, meeting, network, data, chosen), daemon=True)
            for rank in range(1, processes)
        ]
        for other in others:
            other.start()
        try:
            with _join(0, processes, meeting) as group:
                return group.fit(network, data, chosen, progress, states)
        finally:
            _end(others)


@dataclass(frozen=True)
class Group:
    """Processes that train one model together; this is number `rank` of `size`."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process keeps, writes and publishes the results of the training."""
        return self.rank == 0

    def share(self, value: T) -> T:
        """The leader's value, in every process."""
        held = [value]
        if self.size > 1:
            dist.broadcast_object_list(held, src=0)
        return held[0]

    def fit(
        self,
        network: AifNetwork,
        data: TrainingSet,
        chosen: TrainChoices,
        progress: Callable[[float], None] = lambda _: None,
        states: StateFile | None = None,
    ) -> TrainReport:
        """`fit` with the work shared; only the leader has `states`. Raises as `fit`, and Unavailable (`team_failed`)."""
        if self.size == 1:
            return fit(network, data, chosen, progress, states)
        try:
            shared = DistributedDataParallel(_Logits(network), find_unused_parameters=True)

            def logits(_: AifNetwork, data: TrainingSet, batch: Batch, vectors_RD: Tensor) -> Tensor:
                return gather_logits(shared, data, batch, vectors_RD, self.rank, self.size)

            return fit(network, data, chosen, progress, states, Team(logits, self.share))
        except RuntimeError as error:  # gloo's own: a peer that went away
            raise Unavailable("team_failed", f"a process of the fit is gone: {error}; start it again, with --state it continues") from error


ALONE = Group()


@contextmanager
def open_group() -> Iterator[Group]:
    """The processes that `torchrun` started, or this one alone. Raises Misconfigured (`shared_store`) where restarted processes would wait for dead ones:
    torchrun's agents share one store among all rounds, in which the addresses of the last round stay."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield ALONE
        return
    if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True" and os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0":
        remedy = "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun, or start it with --max-restarts 0"
        raise Misconfigured(
            "shared_store", f"torchrun keeps the addresses of processes that are gone, and a restart would wait for them; {remedy}"
        )
    with _join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://") as group:
        yield group


def _run_rank(rank: int, processes: int, meeting: str, network: AifNetwork, data: TrainingSet, chosen: TrainChoices) -> None:
    """The body of each other process: the same fit, of which only the gradients are used."""
    torch.set_num_threads(1)
    network = copy.deepcopy(network)  # torch sends tensors as shared memory: without a copy, each process would step on the weights of all
    with _join(rank, processes, meeting) as group:
        group.fit(network, data, chosen)


def _end(others: Sequence[BaseProcess]) -> None:
    for other in others:
        other.join(_STOP_S_MAX)
        if other.is_alive():
            other.kill()
            other.join()


@contextmanager
def _join(rank: int, size: int, meeting: str) -> Iterator[Group]:
    if meeting.startswith("file:"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: nothing listens to others
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=dt.timedelta(seconds=_SILENT_S_MAX))
    try:
        yield Group(rank, size)
    finally:
        dist.destroy_process_group()


class _Logits(nn.Module):
    """`task_logits` as a module, because DDP acts on the call of one."""

    def __init__(self, network: AifNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, data: TrainingSet, batch: Batch, vectors_RD: Tensor) -> Tensor:
        return task_logits(self.network, data, batch, vectors_RD)


def gather_logits(shared: nn.Module, data: TrainingSet, batch: Batch, vectors_RD: Tensor, rank: int, processes: int) -> Tensor:
    """Logits [B, C, T] of the whole batch: every `processes`-th request is computed here, with gradient, the others elsewhere."""
    requests = len(batch.rows_BC)
    own = shared(data, map_tensors(batch, lambda t: t[rank::processes]), vectors_RD)
    if own.requires_grad:
        own.register_hook(lambda gradient: gradient * processes)  # DDP takes the mean over processes, the loss wants the sum
    padded = torch.zeros(-(-requests // processes), *own.shape[1:])
    padded[: len(own)] = own.detach()
    parts = [torch.empty_like(padded) for _ in range(processes)]
    dist.all_gather(parts, padded)
    whole_BCT = torch.zeros(requests, *own.shape[1:])
    for other in range(processes):
        places = torch.arange(other, requests, processes)
        whole_BCT = whole_BCT.index_copy(0, places, own if other == rank else parts[other][: len(places)])
    return whole_BCT
