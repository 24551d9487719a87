"""The engine: one thread that decides, owns the tables of the resident versions, and answers. (Signatures first; see work.py for the values.)"""

from concurrent.futures import Future

from serving.engine.work import EngineStatus, RankResult, RankWork, UserResult, UserWork


class Engine:
    """One thread; every public method may be called from any thread and never blocks on the engine's work."""

    def __init__(self, device: str = "cpu", queue_max: int = 256) -> None: ...

    def start(self) -> None:
        """Starts the thread after the kernels are compiled."""

    def close(self) -> None:
        """Fails what waits with Unavailable(`stopping`) and joins the thread."""

    def submit_user(self, work: UserWork) -> "Future[UserResult]":
        """Call 1. Raises nothing: a full queue is a future that failed with Unavailable(`overloaded`)."""
        raise NotImplementedError

    def submit_rank(self, work: RankWork) -> "Future[RankResult]":
        """Call 2, or both calls in one turn when `user` is given without a state."""
        raise NotImplementedError

    def status(self) -> EngineStatus:
        """A snapshot from any thread."""
        raise NotImplementedError
