"""Work in threads of its own while a block runs, such as the loads of the demo and of the benches."""

import threading
from collections.abc import Callable
from typing import Self


class Background:
    """Use as a context manager: at the end of the block `stopping` is set and the threads are waited for. An error in one of them sets `stopping`, too, and is
    raised at the end, unless the block has one of its own."""

    def __init__(self, *works: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        self.error: Exception | None = None
        self._threads = [threading.Thread(target=self._keep, args=(work,), daemon=True) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()
        if self.error is not None and kind is None:
            raise self.error

    def _keep(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # handed to the thread that waits for us
            self.error = error
            self.stopping.set()
