"""Loader processes for tests that are not about how one starts: forked from a template that has imported everything, which saves each most of a second."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from infra.fork_server import launch_template
from infra.processes import Child
from serving.versions import loader_process


@contextlib.contextmanager
def forked_loaders(log: Path) -> Iterator[None]:
    """Every loader that starts meanwhile is forked; `test_loader.py` starts real ones."""
    template = launch_template([__name__, "serving.versions.loader_process:load_table_kernels"], log)

    def fork(name: str, command: Sequence[str], log_path: Path, *, inherited_fds: Sequence[int], **_: Any) -> Child:
        return template.start_child(name, f"{__name__}:read_indexes", command[4:], log_path, inherited_fds=inherited_fds)

    with patch("serving.versions.loader.start_child", fork):
        yield
    template.close()


def read_indexes(*arguments: Any) -> None:
    """What `python -m serving.versions.loader_process` does. Arguments: "beside" or nothing, then the descriptor."""
    loader_process.serve(socket.socket(fileno=int(arguments[-1])), loader_process.SHARE if len(arguments) > 1 else 1.0)
