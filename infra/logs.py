"""Logs of a process: one line per request, batch or version, with fields; to standard error only.

`core/` folders return counts instead of logging. A warning of aiokafka is logged once in `_REPEATED_S`: without a broker it repeats eighty times a second.
Form: key=value on a terminal, one JSON object per line elsewhere. Lines of the standard library's loggers (Faust, Kafka clients) take the
same form.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

SELDOM_S = 60.0
_REPEATED_S = 10.0
_TEXTS_KEPT = 1_000
# Their lines of level info are shown only at level debug: forty lines of a worker's start. Services of Faust log under the module of their class, also
# where that is ours.
_CHATTY = ("aiokafka", "faust", "mode", "torch", "streams.faust_shell", "streams.faust_consumer")


def open_logs(process: str, level: str = "info", form: str = "auto") -> structlog.stdlib.BoundLogger:
    """Set up logging for this process and return its logger; every line says `process`. `form` is auto, json or text."""
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    _replace_root_handler(before, as_text, level)
    structlog.contextvars.bind_contextvars(process=process)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(process)
    return logger


def _replace_root_handler(before: list[Any], as_text: bool, level: str) -> None:
    keys = ["time", "level", "process", "event"]
    renderer: Any = (
        structlog.processors.KeyValueRenderer(key_order=keys, drop_missing=True) if as_text else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    drop_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.addFilter(_NotAgainSoon())
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=[drop_meta, renderer]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in _CHATTY if root.level > logging.DEBUG else ():
        logging.getLogger(chatty).setLevel(max(root.level, logging.WARNING))


class _NotAgainSoon(logging.Filter):
    """Drops a warning or an error of aiokafka with the text of a recent one."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or not record.name.startswith("aiokafka"):
            return True
        text, now = record.getMessage(), time.monotonic()
        if now - self._told_at.get(text, float("-inf")) < _REPEATED_S:
            return False
        if len(self._told_at) >= _TEXTS_KEPT:
            self._told_at.clear()
        self._told_at[text] = now
        return True


class Seldom:
    """When to log something that may happen thousands of times a second: the first time, then once in SELDOM_S. `count`: how often it happened so far."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._logged_s, self.count = monotonic, float("-inf"), 0

    def happened(self, times: int = 1) -> bool:
        """Counts it. Whether it is time to log it."""
        self.count += times
        now_s = self._monotonic()
        if now_s < self._logged_s + SELDOM_S:
            return False
        self._logged_s = now_s
        return True
