"""The judgement at the end of the crash bench: the shards' counters, the dead letters and a replay against a fold of the topics."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from infra.figures import Figures
from infra.kafka.dead_letters import dead_letter_topic, decode_dead_letter
from infra.kafka.reader import SourceRecord, read_topic
from lab.demo.stage import SHARDS, json_figures
from lab.system.crash_fold import DeadLetter, count_topic
from lab.system.crash_traffic import Traffic
from lab.system.stage import BenchStage
from schemas.topics import SHARD_TOPICS

Place = tuple[str, int, int]  # topic, partition, offset
ShardCounts = Mapping[int, Mapping[str, Mapping[str, int]]]  # by shard and topic: consumed, applied, superseded, dead_lettered


@dataclass(frozen=True, slots=True)
class Verdict:
    """Updates by what became of them, against the fold of the topics: missing ones are lost, surplus ones are doubled."""

    in_topics: int
    lost: int
    doubled: int
    dead_letters: int
    dead_letters_missing: int
    dead_letters_wrong: int


def judge(stage: BenchStage, traffic: Traffic, figures: Figures) -> None:
    """Adds the verdict on a campaign that is over, and whether a replay gives the same digest."""
    log = {topic: list(read_topic(stage.bootstrap_servers, topic, prefix=stage.topic_prefix)) for topic in SHARD_TOPICS}
    verdict = compare(log, traffic.acknowledged, _count_shards(stage), _read_dead_letters(stage))
    replay = stage.run("replay", "replay", "--directory", str(stage.directory / "replay"), "--json")
    figures.add("acknowledged", len(traffic.acknowledged))
    figures.add("not_acknowledged", traffic.not_acknowledged)
    figures.add("in_topics", verdict.in_topics)
    figures.add("lost", verdict.lost)
    figures.add("doubled", verdict.doubled)
    figures.add("dead_letters", verdict.dead_letters)
    figures.add("dead_letters_missing", verdict.dead_letters_missing)
    figures.add("dead_letters_wrong", verdict.dead_letters_wrong)
    figures.add("digest_equal", json_figures(replay)["digest_equal"])


def compare(
    log: Mapping[str, Sequence[SourceRecord]], acknowledged: Collection[Place], counted: ShardCounts, letters: set[DeadLetter]
) -> Verdict:
    """Counts the topics by a fold of our own and compares.

    log           committed records by topic
    acknowledged  records that the broker has acknowledged
    counted       what the shards counted
    letters       the dead letters that were sent
    """
    lost = doubled = in_topics = 0
    expected_letters = set[DeadLetter]()
    for topic, records in log.items():
        judged = count_topic(topic, sorted(records, key=lambda r: (r.partition, r.offset)))
        expected_letters |= judged.dead_letters
        for shard, expected in judged.counts.items():
            found = counted[shard][topic]
            in_topics += expected["consumed"]
            lost += sum(max(0, wanted - found[name]) for name, wanted in expected.items())
            doubled += sum(max(0, count - expected[name]) for name, count in found.items())
    there = {(topic, record.partition, record.offset) for topic, records in log.items() for record in records}
    lost += len(set(acknowledged) - there)
    return Verdict(in_topics, lost, doubled, len(expected_letters), len(expected_letters - letters), len(letters - expected_letters))


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
