"""What the crash bench finds when all is over: the shards' counters, the dead letters and a replay beside a fold of the topics."""

import json

from infra.figures import Figures
from infra.kafka.dead_letters import dead_letter_topic, decode_dead_letter
from infra.kafka.reader import read_topic
from lab.demo.stage import SHARDS, json_figures
from lab.system.crash_fold import DeadLetter, count_topic
from lab.system.crash_traffic import Traffic
from lab.system.stage import BenchStage
from schemas.topics import SHARD_TOPICS


def judge(stage: BenchStage, traffic: Traffic, figures: Figures) -> None:
    """Counts the topics by a fold of our own and compares: what is missing is lost, what is too much is doubled."""
    found = _count_shards(stage)
    lost = doubled = expected_total = 0
    dead_letters = set[DeadLetter]()
    missing = set(traffic.acknowledged)
    for topic in SHARD_TOPICS:
        records = list(read_topic(stage.bootstrap_servers, topic, prefix=stage.topic_prefix))
        for record in records:
            missing.discard((topic, record.partition, record.offset))
        judged = count_topic(topic, sorted(records, key=lambda r: (r.partition, r.offset)))
        dead_letters |= judged.dead_letters
        for shard, expected in judged.counts.items():
            expected_total += expected["consumed"]
            for name, wanted in expected.items():
                lost += max(0, wanted - found[shard][topic][name])
            doubled += sum(max(0, count - expected[name]) for name, count in found[shard][topic].items())
    dead_letters_found = _read_dead_letters(stage)
    replay = stage.run("replay", "replay", "--directory", str(stage.directory / "replay"), "--json")
    figures.add("acknowledged", len(traffic.acknowledged))
    figures.add("not_acknowledged", traffic.not_acknowledged)
    figures.add("in_topics", expected_total)
    figures.add("lost", lost + len(missing))
    figures.add("doubled", doubled)
    figures.add("dead_letters", len(dead_letters))
    figures.add("dead_letters_missing", len(dead_letters - dead_letters_found))
    figures.add("dead_letters_wrong", len(dead_letters_found - dead_letters))
    figures.add("digest_equal", json_figures(replay)["digest_equal"])


def _read_dead_letters(stage: BenchStage) -> set[DeadLetter]:
    """Where the dead letters came from; one that was sent twice counts once (A5)."""
    found = set[DeadLetter]()
    for topic in SHARD_TOPICS:
        for record in read_topic(stage.bootstrap_servers, dead_letter_topic(topic), prefix=stage.topic_prefix):
            source = decode_dead_letter(list(record.headers))
            found.add((source.topic, source.partition, source.offset, source.index))
    return found


def _count_shards(stage: BenchStage) -> dict[int, dict[str, dict[str, int]]]:
    """The counters that the shards wrote in their batches."""
    log = stage.run("shards", "shards", str(stage.directory / "worker"), "--json")
    rows = json.loads(next(line for line in log.splitlines() if line.startswith('{"shards"')))["shards"]
    assert [row["shard"] for row in rows] == list(range(SHARDS))
    return {row["shard"]: row["counts"] for row in rows}
