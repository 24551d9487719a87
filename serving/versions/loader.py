"""The serving process's handle on the loader process: starts it, sends it arenas, asks it to load. One caller at a time.

The arenas are created for the first version, and sent to the loader as file descriptors. A loader that died is started again and gets them again; as a
version is served by then, it gives way to requests from its first instruction on.
An arena that is too small for a version is replaced by a larger one before the load. The loader process touches its pages, so that the requests on the version
in the other arena do not wait for them.
"""

import json
import mmap
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import schemas.errors
from infra.processes import Child, start_child, stop_all
from schemas.errors import AifError, Corrupted, Incompatible, Unavailable
from schemas.index.manifest import Manifest, manifest_path
from serving.engine.tables.arena import ArenaMemory, open_arrays, plan_arena, plan_arena_bytes
from serving.engine.tables.tables import NO_ROOM, Room, Tables

SILENCE_S_MAX = 300.0  # a loader at work sends a sign of life every few seconds, unless it waits for one slow read or for a core
ARENAS = 2
_MESSAGE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A version's manifest: where it is stored and its expected sha256. `room`: what the version needs at least, because it has grown since."""

    store_url: str
    manifest: Manifest
    sha256: str
    room: Room = NO_ROOM

    def message(self) -> dict[str, Any]:
        """The fields of a message to the loader."""
        path = manifest_path(self.manifest.version, self.manifest.revision)
        return {"store": self.store_url, "manifest": path, "sha256": self.sha256, **self.room._asdict()}


class Loader:
    """The loader process and the two arenas that it fills. `arena_bytes`: of each arena at the start; 0 = 1.5 times the first version."""

    def __init__(self, arena_bytes: int = 0) -> None:
        self._arena_bytes = arena_bytes
        self._arenas: list[ArenaMemory] = []
        self._sent = 0  # arenas that the running process was sent
        self._has_loaded = False
        self._child: Child | None = None
        self._connection: socket.socket | None = None

    def start(self) -> None:
        """Starts the process unless it runs. Called early and often, so that it is ready before a version is. Does not wait for it."""
        if self._child is not None and self._child.alive():
            return
        self._stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            beside = ["beside"] if self._has_loaded else []
            command = [sys.executable, "-m", "serving.versions.loader_process", str(theirs.fileno()), *beside]
            self._child = start_child("loader", command, Path(os.devnull), inherited_fds=[theirs.fileno()], shares_session=True)
        ours.settimeout(SILENCE_S_MAX)
        self._connection = ours

    def close(self) -> None:
        """Ends the process and gives the memory back."""
        self._stop()
        for memory in self._arenas:
            memory.close()
        self._arenas = []

    def load(self, source: Source, arena: int) -> Tables:
        """Loads and verifies a version into arena 0 or 1, which grows if it has to. Raises Corrupted, Incompatible, Unavailable; then the arena holds nothing.

        A process that was killed between two loads is noticed by the first message to it. It costs a new process, not a load.
        """
        try:
            self._prepare(source)
        except Unavailable as error:
            if error.code != "loader_died":
                raise
            self._prepare(source)
        try:
            measured = self._ask({"op": "load", "arena": arena, **source.message()})
        except Incompatible as error:
            if error.code != "arena_too_small":
                raise
            self._replace_arena(arena, self._measure_arena(source))
            measured = self._ask({"op": "load", "arena": arena, **source.message()})
        layout, memory = source.manifest.layout, self._arenas[arena]
        self._has_loaded = True
        plan = plan_arena(layout, memory.size_bytes, measured["rows"], measured["id_bytes"])
        return Tables(layout, plan, open_arrays(plan, memory.buffer))

    def _prepare(self, source: Source) -> None:
        """Both arenas are there, and the process has them."""
        if not self._arenas:
            self._open_arenas(source)
        self._send_arenas()

    def _measure_arena(self, source: Source) -> int:
        """Bytes of an arena for this version."""
        measured = self._ask({"op": "measure", **source.message()})
        return plan_arena_bytes(source.manifest.layout, measured["rows"], measured["id_bytes"])

    def _open_arenas(self, source: Source) -> None:
        size = self._arena_bytes or self._measure_arena(source)
        opened = list[ArenaMemory]()
        try:
            for _ in range(ARENAS):
                opened.append(ArenaMemory(size))
                opened[-1].populate()
        except (OSError, OverflowError) as error:
            for memory in opened:
                memory.close()
            hint = ", or a smaller AIF_ENGINE__ARENA_BYTES" if self._arena_bytes else ""
            raise Unavailable(
                "no_arena_memory", f"no memory for {ARENAS} arenas of {size} bytes: {error}; give the server more memory{hint}"
            ) from error
        self._arenas = opened

    def _replace_arena(self, arena: int, size: int) -> None:
        """Larger memory for an arena that is not in use. The former memory goes first, so that there is never more than one arena too many."""
        former_bytes = self._arenas[arena].size_bytes
        self._arenas[arena].close()
        self._arenas[arena] = ArenaMemory(mmap.PAGESIZE)
        memory: ArenaMemory | None = None
        try:
            memory = ArenaMemory(size)
            self._ask({"op": "open", "arena": arena, "bytes": size}, memory.fd)
            memory.populate()
        except (OSError, OverflowError, Unavailable) as error:
            if memory is not None:
                memory.close()
            self._sent = 0  # the process gets this memory, whatever it has under this number now
            if isinstance(error, Unavailable) and error.code != "no_arena_memory":
                raise
            raise Unavailable(
                "no_arena_memory",
                f"no memory for an arena of {size} bytes instead of {former_bytes}: {error}; give the server more memory, it tries again by itself",
            ) from error
        self._arenas[arena].close()
        self._arenas[arena] = memory

    def _send_arenas(self) -> None:
        """Sends the arenas that the process does not have yet: all of them to a new one."""
        if self._child is None or not self._child.alive():
            self.start()
        while self._sent < len(self._arenas):
            memory = self._arenas[self._sent]
            self._ask({"op": "open", "arena": self._sent, "bytes": memory.size_bytes}, memory.fd)
            self._sent += 1

    def _ask(self, request: dict[str, Any], fd: int | None = None) -> dict[str, Any]:
        """Sends one message and returns the answer. Starts the process again if it has ended.

        Raises the loader's error, Unavailable: `loader_died`, `loader_silent` (it hangs, and is ended).
        """
        if self._connection is None:
            self.start()
        assert self._connection is not None
        try:
            socket.send_fds(self._connection, [json.dumps(request).encode()], [] if fd is None else [fd])
            reply = self._receive(self._connection)
        except TimeoutError as error:
            self._stop()
            raise Unavailable(
                "loader_silent",
                f"the loader process said nothing for {SILENCE_S_MAX:g} s while it was asked for {request['op']}; it was ended and is started again",
            ) from error
        except (OSError, ValueError) as error:
            code = self._stop()
            raise Unavailable(
                "loader_died",
                f"the loader process ended with code {code} (negative: by that signal; -9 is often the lack of memory) while it was asked for"
                f" {request['op']} ({error}); it is started again",
            ) from error
        if not reply["ok"]:
            raise _error_of(reply)
        return reply

    @staticmethod
    def _receive(connection: socket.socket) -> dict[str, Any]:
        """The answer, which comes after any number of signs of life."""
        while message := connection.recv(_MESSAGE_BYTES_MAX):
            reply: dict[str, Any] = json.loads(message)
            if "ok" in reply:
                return reply
        raise ConnectionError("the connection is closed")

    def _stop(self) -> int | None:
        """Ends the process; its exit code, None if absent."""
        child = self._child
        if self._connection is not None:
            self._connection.close()
        if child is not None:
            stop_all([child], grace_s=1.0)
        self._connection, self._child, self._sent = None, None, 0
        return None if child is None else child.process.returncode


def _error_of(reply: dict[str, Any]) -> AifError:
    kind = getattr(schemas.errors, reply["error"], Corrupted)
    return kind(reply["code"], reply["message"])
