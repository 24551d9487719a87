"""Bad records of impressions: each is one dead letter with its reason, however often and by whomever it is read, and none stops training."""

import json

import pytest
from typer.testing import CliRunner

from infra.cli import build_app
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


def _train_once(bootstrap: str, prefix: str) -> RefusedImpressions:
    refused = RefusedImpressions(bootstrap, prefix)
    read = TopicEvents(bootstrap, prefix, 2, 2, IdKind.INT64, refused.refuse).read()
    assert len(read.impressions) == len(shop()[1].impressions), "the good ones are learnt from"
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


def test_a_broker_that_does_not_answer_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_impressions, "_SETTLE_S_MAX", 0.1)
    monkeypatch.setattr(refused_impressions, "_WAITING_BYTES_MAX", 10)
    monkeypatch.setattr(refused_impressions.RefusedImpressions, "_known", set())
    refused = RefusedImpressions("127.0.0.1:1", "nobody.")
    for offset in range(3):
        refused.refuse(SourceRecord("impressions", 0, offset, None, b"12345678"), RejectedInput("bad", "it is bad"))
    assert refused.settle() == 1 and refused.sent == 0, "one waits, two are left to the next reading"
