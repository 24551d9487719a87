"""Bad records of impressions: each is one dead letter with its reason, however often and by whomever it is read, and none stops training."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
from infra.kafka import sent_letters
from infra.kafka.admin import apply_topics
from infra.kafka.reader import SourceRecord, read_topic
from infra.kafka.redrive import read_dead_letters
from schemas.errors import RejectedInput
from schemas.ids import IdKind
from streams.training import refused_impressions
from streams.training.refused_impressions import RefusedImpressions
from streams.training.topic_events import TopicEvents
from tests.streams.training.shop import publish_shop, shop
from tests.streams.training.test_topic_events import produce

_ITEM = b'{"item_id": "red shoe", "position": 0, "bid": 1.0, "clicked": true}'
OF_ANOTHER_KIND = b'{"schema": 1, "request_id": "r", "user_id": 7, "time_ms": 1, "items": [' + _ITEM + b"]}"


def _train_once(bootstrap: str, prefix: str, more: int = 0) -> RefusedImpressions:
    refused = RefusedImpressions(bootstrap, prefix)
    topics = TopicEvents(bootstrap, prefix, 2, 2, IdKind.INT64, refused.refuse)
    read = topics.read(topics.ends())
    assert len(read.impressions) == len(shop()[1].impressions) + more, "the good ones are learnt from"
    refused.settle()
    return refused


def test_a_bad_impression_is_one_dead_letter_however_often_it_is_read(
    bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    produce(bootstrap_servers, topic_prefix + "impressions", b"\xff not json", key="k", partition=1)
    produce(bootstrap_servers, topic_prefix + "impressions", OF_ANOTHER_KIND, key="7")
    assert _train_once(bootstrap_servers, topic_prefix).sent == 2
    assert _train_once(bootstrap_servers, topic_prefix).sent == 0
    assert len(list(read_topic(bootstrap_servers, "dlq.impressions", prefix=topic_prefix))) == 2
    letters = {letter.source.code: letter for letter in read_dead_letters(bootstrap_servers, topic_prefix, "impressions")}
    assert {letter.source.disposition for letter in letters.values()} == {"malformed", "semantic"} and "bad_id" in letters
    assert any(letter.record.value == b"\xff not json" and letter.record.key == b"k" for letter in letters.values())
    monkeypatch.setenv("AIF_KAFKA__BOOTSTRAP_SERVERS", bootstrap_servers)
    monkeypatch.setenv("AIF_KAFKA__TOPIC_PREFIX", topic_prefix)
    listed = CliRunner().invoke(build_app(), ["dlq", "list", "impressions", "--json"])
    assert len(json.loads(listed.stdout)["dead_letters"]) == 2, listed.output


def _dlq(*arguments: str) -> Any:
    result = CliRunner().invoke(build_app(), ["dlq", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_refused_impression_is_shown_sent_again_once_and_then_learnt_or_refused_as_the_next_attempt(
    bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("KAFKA__BOOTSTRAP_SERVERS", bootstrap_servers), ("KAFKA__TOPIC_PREFIX", topic_prefix), ("INDEX__STORE", tmp_path)):
        monkeypatch.setenv(f"AIF_{name}", str(value))
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    publish_shop(bootstrap_servers, topic_prefix, IdKind.INT64)
    produce(bootstrap_servers, topic_prefix + "impressions", b"\xff not json", key="k", partition=1)
    good = next(iter(read_topic(bootstrap_servers, "impressions", prefix=topic_prefix)))
    older = RefusedImpressions(bootstrap_servers, topic_prefix)
    older.refuse(good, RejectedInput("bad_record", "an older trainer knew no such field", "schema"))
    older.settle()
    assert _train_once(bootstrap_servers, topic_prefix).sent == 1

    (refused,) = _dlq("list", "impressions", "--code", "not_json")["dead_letters"]
    shown = _dlq("show", "impressions", str(refused["partition"]), str(refused["offset"]))
    assert (shown["key"], shown["value_bytes"], shown["attempt"]) == ("k", 10, 1)
    assert {row["code"] for row in _dlq("redrive", "impressions", "--dry-run")["would_send"]} == {"bad_record", "not_json"}
    assert _dlq("redrive", "impressions", "--rate", "1000")["sent"] == 2
    assert _dlq("redrive", "impressions")["would_send"] == []

    assert _train_once(bootstrap_servers, topic_prefix, more=1).sent == 1
    (back,) = (row for row in _dlq("list", "impressions")["dead_letters"] if row["attempt"] == 2)
    assert (back["code"], back["partition"]) == ("not_json", 1)
    copies = [r for r in read_topic(bootstrap_servers, "impressions", prefix=topic_prefix) if r.value == good.value]
    assert [(r.partition, r.key) for r in copies] == [(good.partition, good.key)] * 2
    assert [row["offset"] for row in _dlq("redrive", "impressions", "--dry-run")["would_send"]] == [back["offset"]]


def test_a_broker_that_does_not_answer_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_impressions, "_SETTLE_S_MAX", 0.1)
    monkeypatch.setattr(sent_letters, "_ANSWER_S_MAX", 0.1)
    monkeypatch.setattr(refused_impressions, "_WAITING_BYTES_MAX", 10)
    refused = RefusedImpressions("127.0.0.1:1", "nobody.")
    for offset in range(3):
        refused.refuse(SourceRecord("impressions", 0, offset, None, b"12345678"), RejectedInput("bad", "it is bad"))
    assert refused.settle() == 1 and refused.sent == 0, "one waits, two are left to the next reading"
