"""The loader process: reads one version from the index store, verifies all of it, and fills an arena. No torch in this process.

Loading inside the serving process would make the p99 of its requests 1.2 to 5 times as long. A separate process that writes into memory which is already
mapped does not. The first version loads at full speed, because the server waits for it. Later loads get only the time that requests leave. The system
schedules the process behind all others of its session, so it must share the server's session (loader.py). It also rests between short turns: caches and
memory bandwidth are shared, and a load that never rests slows requests.

Invariant: "loaded" is answered only after everything was verified. That is the manifest's sha256, every file's size and sha256, every block's checksum, the
row counts of every part and shard, and both digests of the merged view. Until then no thread reads the arena, so a failed load needs no clean-up.

Protocol: a Unix socket of packets, given by its number; each packet is one message in JSON; the file descriptor of an arena comes with its `open` message.

    {"op": "open", "arena": 0, "bytes": n} + fd
    {"op": "measure", store, manifest, sha256, rows, id_bytes}
    {"op": "load", "arena": 0, store, manifest, sha256, rows, id_bytes}     rows, id_bytes: room that is needed at least
    -> {"working": true}, every few seconds while it works, then
    -> {"ok": true, ...} | {"ok": false, "error": class, "code": ..., "message": ...}
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from infra.index.parts import read_full_part, read_incremental_part
from infra.index.store import IndexStore, find_index_store
from schemas.errors import AifError, Corrupted, Unavailable, lack_of_memory
from schemas.ids import IdKind
from schemas.index.digest import ShardDigest, merge_parts
from schemas.index.manifest import Manifest, Seal, decode_manifest, describe_repair
from serving.engine.tables.arena import ArenaMemory, open_arrays, plan_arena, reset_arrays
from serving.engine.tables.changes import Changes, changes_of
from serving.engine.tables.tables import Tables
from serving.engine_kernels import load_table_kernels

_MESSAGE_BYTES_MAX = 1 << 20
SHARE = 0.25  # of a core, for a load in parallel with requests
_REST_S_MIN = 0.0005  # a shorter rest is not worth the system call
SIGN_S = 5.0  # between two signs of life


def _measure(store: IndexStore, manifest: Manifest, request: dict[str, Any], rest: Callable[[], None]) -> tuple[int, int]:
    """(live rows of a version, bytes of its text ids), at least those of the request. The bytes are an upper bound: an id in both parts counts twice."""
    rows = max(request["rows"], sum(seal.rows for seal in manifest.seals))
    if manifest.layout.id_kind is IdKind.INT64:
        return rows, 0
    key_bytes = 0
    for seal in manifest.seals:
        for block in read_full_part(store, seal.full, manifest.layout, verify=False):
            key_bytes += sum(len(k) for k in block.keys)
            rest()
        key_bytes += sum(len(k) for k, _ in read_incremental_part(store, seal.incremental, verify=False))
    return rows, max(request["id_bytes"], key_bytes)


def fill_shard(store: IndexStore, manifest: Manifest, seal: Seal, tables: Tables, rest: Callable[[], None] = lambda: None) -> None:
    """Reads one shard's live rows into the tables; `rest` is called after each block. Raises Corrupted if counts or digests differ from the seal's.

    Deletes are left out: the seal's offsets cover them, so a reader need not remember them (engine/tables/tables.py).
    """
    layout = manifest.layout
    digest = ShardDigest(layout, manifest.model_id, manifest.lsh_version)
    for block in merge_parts(layout, read_full_part(store, seal.full, layout), read_incremental_part(store, seal.incremental)):
        digest.update(block)
        _apply(tables, changes_of(block, layout.id_kind))
        rest()
    _check(seal, digest)


def _apply(tables: Tables, changes: Changes) -> None:
    applied = tables.apply(changes) if len(changes) else None
    if applied is not None and applied.applied != len(changes):
        raise Corrupted(
            "repeated_row", f"{len(changes) - applied.applied} of {len(changes)} rows are in the version twice; {describe_repair()}"
        )


def _check(seal: Seal, digest: ShardDigest) -> None:
    found = {"rows": digest.rows, "digest": digest.hexdigest, "data_digest": digest.data_hexdigest}
    for name, value in found.items():
        if value != getattr(seal, name):
            raise Corrupted(
                "bad_shard",
                f"shard {seal.shard}: {name} is {value}, its seal says {getattr(seal, name)}; {describe_repair(seal.full.directory)}",
            )


class Pace:
    """Rests so that this process uses at most `share` of a core since it began. Time that it waited for a core counts as rest."""

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.perf_counter,
        spent: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share, self._clock, self._spent, self._sleep = share, clock, spent, sleep
        self.begin()

    def begin(self) -> None:
        """Counts from now on."""
        self._began_s, self._spent_s = self._clock(), self._spent()

    def rest(self) -> None:
        """To be called after each piece of work; a piece should be shorter than a request."""
        ahead_s = (self._spent() - self._spent_s) / self._share - (self._clock() - self._began_s)
        if ahead_s > _REST_S_MIN:
            self._sleep(ahead_s)


class LoaderProcess:
    """The operations of the loader process, on the arenas that it was sent.

    - share: how much of a core a load may use
    - sign: tells the server that the work goes on; called every SIGN_S
    """

    def __init__(self, share: float = 1.0, sign: Callable[[], None] = lambda: None) -> None:
        self._arenas: dict[int, ArenaMemory] = {}
        self.share, self._sign, self._signed_s = share, sign, time.monotonic()

    def _between(self) -> None:
        """Called after each piece of work."""
        if time.monotonic() - self._signed_s >= SIGN_S:
            self._sign()
            self._signed_s = time.monotonic()

    def open(self, request: dict[str, Any], fd: int | None) -> dict[str, Any]:
        """Maps an arena instead of the former one of this number, and touches its pages. Raises Unavailable: `arena_not_received` (a process without a free
        descriptor gets the message and loses what came with it), `no_arena_memory`."""
        if fd is None:
            raise Unavailable(
                "arena_not_received", f"arena {request['arena']} came without its file descriptor; allow more open files (ulimit -n)"
            )
        former = self._arenas.pop(request["arena"], None)
        if former is not None:
            former.close()
        try:
            memory = self._arenas[request["arena"]] = ArenaMemory(request["bytes"], fd)
            memory.populate(self._between)
        except OSError as error:
            raise Unavailable("no_arena_memory", f"{error}") from error
        return {}

    def measure(self, request: dict[str, Any], _: int | None) -> dict[str, Any]:
        """{"rows", "id_bytes"} that a version needs."""
        rows, id_bytes = _measure(*_open(request, self._between), request, self._between)
        return {"rows": rows, "id_bytes": id_bytes}

    def load(self, request: dict[str, Any], _: int | None) -> dict[str, Any]:
        """Fills an arena. Returns {"rows", "id_bytes"}, from which the other side plans the same arrays. Raises Incompatible (`arena_too_small`)."""
        pace = Pace(self.share)

        def rest() -> None:
            pace.rest()
            self._between()

        store, manifest = _open(request, rest)
        memory = self._arenas[request["arena"]]
        rows, id_bytes = _measure(store, manifest, request, rest)
        plan = plan_arena(manifest.layout, memory.size_bytes, rows, id_bytes)
        arrays = open_arrays(plan, memory.buffer)
        reset_arrays(arrays)
        tables = Tables(manifest.layout, plan, arrays)
        pace.begin()
        for seal in manifest.seals:
            fill_shard(store, manifest, seal, tables, rest)
        return {"rows": rows, "id_bytes": id_bytes}


def _open(request: dict[str, Any], rest: Callable[[], None]) -> tuple[IndexStore, Manifest]:
    store = find_index_store(request["store"], rest)
    return store, decode_manifest(store.get(request["manifest"]), request["sha256"])


def _answer(call: Callable[[dict[str, Any], int | None], dict[str, Any]], request: dict[str, Any], fd: int | None) -> dict[str, Any]:
    try:
        return {"ok": True, **call(request, fd)}
    except Exception as error:  # a failed load is reported to the server and never ends this process
        unknown = Corrupted("load_failed", f"{type(error).__name__}: {error}")
        named = error if isinstance(error, AifError) else lack_of_memory(error) or unknown
        return {"ok": False, "error": type(named).__name__, "code": named.code, "message": named.message}


def serve(connection: socket.socket, share: float = 1.0) -> None:
    """Answers messages until the other end closes the socket. `share` of a core for the loads up to the first that succeeds."""
    reader = LoaderProcess(share, lambda: _send(connection, {"working": True}))
    while True:
        message, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, 1)
        if not message:
            return
        request = json.loads(message)
        call = {"open": reader.open, "measure": reader.measure, "load": reader.load}[request["op"]]
        reply = _answer(call, request, fds[0] if fds else None)
        if request["op"] == "load" and reply["ok"]:
            reader.share = SHARE
            _give_way()
        _send(connection, reply)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.send(json.dumps(message).encode())


def _give_way() -> None:
    """Any other process of the session gets the core at once. (A merely nice process would finish its turn first: up to 4 ms of a request.)"""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main() -> None:
    """`python -m serving.versions.loader_process FD [beside]`; `beside`: requests are answered already, so all of it gives way to them."""
    beside = sys.argv[2:] == ["beside"]
    if beside:
        _give_way()
    assert "torch" not in sys.modules, "the loader process must not load torch: it would take its memory and seconds at every start"
    load_table_kernels()  # now, so that the first load does not have to
    serve(socket.socket(fileno=int(sys.argv[1])), SHARE if beside else 1.0)


if __name__ == "__main__":
    main()
