"""Objects that the end of a `with` block closes, also after an error."""

from typing import Self


class Closeable:
    """Base of a class with `close`, which the end of a `with` block calls."""

    def close(self) -> None:
        """Free its resources."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
