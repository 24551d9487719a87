"""Logs: one JSON object per line where no person reads, key=value where one does."""

import json
import subprocess
import sys

from infra.logs import SELDOM_S, Seldom

_CODE = """
import logging
from infra.logs import open_logs
log = open_logs("worker", "info", {form!r})
log.info("shard opened", shard=3)
log.debug("not shown")
for name in ("faust.app", "streams.faust_shell", "streams.faust_consumer"):
    logging.getLogger(name).info("not shown")
logging.getLogger("faust").warning("rebalance %s", 7)
for node in (1, 1, 2, 1):
    logging.getLogger("aiokafka.cluster").error("no connection to %d", node)
"""


def _lines(form: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", _CODE.format(form=form)], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_away_from_a_terminal_every_line_is_a_json_object_with_its_fields() -> None:
    ours, foreign, *_ = (json.loads(line) for line in _lines("auto"))
    assert (ours["process"], ours["event"], ours["shard"], ours["level"]) == ("worker", "shard opened", 3, "info")
    assert (foreign["process"], foreign["event"], foreign["logger"]) == ("worker", "rebalance 7", "faust")


def test_what_a_client_without_a_broker_repeats_is_told_once_a_while() -> None:
    assert [json.loads(line)["event"] for line in _lines("auto")[2:]] == ["no connection to 1", "no connection to 2"]


def test_text_is_key_value_pairs() -> None:
    assert "event='shard opened'" in _lines("text")[0]
    assert "shard=3" in _lines("text")[0]


def test_a_flood_is_logged_at_its_start_and_then_once_a_minute_with_its_count() -> None:
    now_s = [5.0]
    seldom = Seldom(lambda: now_s[0])
    assert [seldom.happened(2) for _ in range(3)] == [True, False, False]
    now_s[0] += SELDOM_S
    assert (seldom.happened(), seldom.happened(), seldom.count) == (True, False, 8)
