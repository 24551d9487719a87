"""Where builder processes come from: they are forked from a template process, or else started as programs.

A worker and its builders need NumPy, numba and our kernels, and importing them costs each process 2 s of a core. So a worker imports everything first,
while it has one thread and nothing open, and forks a template then (infra/fork_server.py says why that is safe). Builders are forked from the template, at
the start and whenever one has died. Without a template, or if it was killed, they are started as programs.
"""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.fork_server import Template, fork_template, import_single_threaded
from infra.processes import Child, start_child
from schemas.errors import Unavailable

StartBuilder = Callable[[str, Path, int], Child]  # given its name, its log, its end of the socket to the worker

_BUILDER = "streams.builders.process"
_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
_log = logging.getLogger("aif.streams.builders")


def open_builder_template() -> Template | None:
    """Imports what workers and builders compute with, and forks the template. None if this process has threads already: then a fork is not safe."""
    os.environ.update(_ENVIRONMENT)
    import_single_threaded([_BUILDER])
    from streams.kernels import load_kernels

    load_kernels()
    template = fork_template()
    if template is None:
        _log.warning("this process has threads already: builders start as programs, which takes some seconds each")
    return template


def start_from(template: Template | None, store_url: str) -> StartBuilder:
    """The function that starts builders for the index store `store_url`."""

    def start(name: str, log_path: Path, descriptor: int) -> Child:
        options: dict[str, Any] = {"environment": _ENVIRONMENT, "inherited_fds": [descriptor]}
        if template is not None:
            try:
                return template.start_child(name, f"{_BUILDER}:work_for_parent", [store_url], log_path, **options)
            except Unavailable as error:
                _log.warning("starting %s as a program, which takes some seconds: %s", name, error)
        return start_child(name, [sys.executable, "-m", _BUILDER, store_url, str(descriptor)], log_path, **options)

    return start
