"""What is closed at the end of a `with` block, also after an error. Not here: what holds on to nothing but threads of its own (background.py)."""

from typing import Self


class Closeable:
    """Base of what has `close`, which the end of a `with` block calls."""

    def close(self) -> None:
        """Gives up what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
