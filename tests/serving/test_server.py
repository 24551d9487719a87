"""The whole server in one process over a real index store and a real broker: answers under flips and deltas, audited by the reference network."""

import asyncio
import contextlib
import dataclasses
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from infra.index.control_log import ControlLog
from infra.index.store import IndexStore, open_index_store
from infra.kafka.publisher import Publisher
from infra.processes import wait_until
from infra.settings import load_settings
from schemas.errors import Unavailable
from schemas.events import Behaviour
from schemas.ids import IdKind, encode_wire_id
from schemas.index.lifecycle import EntryKind
from schemas.requests import AtLeast, FinalChoice, InlineBehaviour, PrerankRequest, RankAnswer
from serving import server as server_module
from serving.audit.parity import Report, recompute
from serving.audit.recorded_answers import RecordedAnswer, read_answers
from serving.client import Client
from serving.server import RankingServer
from serving.settings import ServerSettings
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import Version, item_id, make_behaviours, make_version, stamp
from tests.serving.index_samples import DeltaWriter, decide, publish_version, write_identity

ITEMS = 150
WAIT_S = 120.0  # a first run compiles the kernels


@dataclass
class Served:
    """A running server with its store, topics and answers."""

    store: IndexStore
    bootstrap: str
    prefix: str
    versions: dict[int, Version]
    deltas: DeltaWriter
    client: Client
    server: RankingServer
    kind: IdKind
    clock: int = 10  # past the offsets of the seals, which are 7
    recorded: list[RecordedAnswer] = field(default_factory=list)

    @property
    def log(self) -> ControlLog:
        return ControlLog(self.store)

    def publish(self, number: int, promote: bool = True) -> None:
        publish_version(self.store, self.log, self.versions[number], number, promote=promote)

    def change(self, number: int, *places: int, dead: bool = False) -> None:
        """New vectors, bids and categories for some items of a version, through index-deltas."""
        self.clock += 1
        version, rng = self.versions[number], np.random.default_rng(self.clock)
        changes = []
        for place in places:
            row = version.rows[int(rng.integers(ITEMS))].copy()
            row["bid"] = rng.random() + 0.5
            changes.append((item_id(self.kind, place), stamp(self.clock, self.clock, dead=dead), None if dead else row))
        self.deltas.write(version, number, changes)

    def ask(self, number: int, user: int, top_k: int = 20, final: FinalChoice | None = None) -> RankAnswer:
        """One request that carries its history, recorded."""
        history = make_behaviours(self.versions[number], 30, seed=user)
        request = PrerankRequest(
            user_id=encode_wire_id(item_id(self.kind, user)),
            item_ids=[encode_wire_id(item_id(self.kind, i)) for i in range(ITEMS + 10)],
            top_k=top_k,
            context={"hour": user % 24},
            features={"age": 0.1 * user, "city": "rome"},
            behaviours=[
                InlineBehaviour(item_id=encode_wire_id(b.item_id), kind=b.kind, time_ms=b.time_ms, features=dict(b.features))
                for b in history
            ],
            deadline_ms=30_000,
            final=final,
        )
        self.recorded.append(RecordedAnswer(request, self.client.prerank(request)))
        return self.recorded[-1].answer

    def audit(self, answers: list[RecordedAnswer] | None = None) -> Report:
        return recompute(self.recorded if answers is None else answers, self.store.url, self.bootstrap, self.prefix)


@contextlib.contextmanager
def run_server(settings: ServerSettings) -> Iterator[tuple[RankingServer, str]]:
    opened, found = threading.Event(), dict[str, object]()

    async def run() -> None:
        found["server"], found["loop"] = RankingServer(settings), asyncio.get_running_loop()
        await found["server"].run(lambda url: (found.update(url=url), opened.set()))  # type: ignore[attr-defined]

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        assert opened.wait(WAIT_S), "the server did not open its port"
        yield found["server"], found["url"]  # type: ignore[misc]
    finally:
        found["loop"].call_soon_threadsafe(found["server"].stop)  # type: ignore[attr-defined]
        thread.join(WAIT_S)
        assert not thread.is_alive(), "the server did not stop"


@contextlib.contextmanager
def serve(spec: str, folder: Path, bootstrap: str, prefix: str) -> Iterator[Served]:
    store = open_index_store(str(folder / "store"))
    versions = {number: make_version(SPECS[spec], ITEMS, seed=number) for number in (1, 2, 3, 4)}
    kind = versions[1].spec.schema.id_kind
    deltas = DeltaWriter(bootstrap, prefix)
    flags = {
        "kafka": {"bootstrap_servers": bootstrap, "topic_prefix": prefix},
        "index": {"store": store.url},
        "serve": {"port": 0, "deadline_ms": 30_000, "address_file": folder / "address.json"},
        "engine": {"device": "cpu", "poll_s": 0.02},
        "users": {"data_dir": folder / "users"},
    }
    with run_server(load_settings(ServerSettings, flags, {})) as (server, url), Client(url) as client:
        yield Served(store, bootstrap, prefix, versions, deltas, client, server, kind)


def test_a_server_that_starts_on_a_full_disk_waits_for_room_and_says_so(
    tmp_path: Path, bootstrap_servers: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended, where a running one continues."""

    def refuse(*_: object) -> None:
        raise Unavailable("disk_full", "open in /users: no space left on device; free disk space")

    with monkeypatch.context() as full, serve("full", tmp_path, bootstrap_servers, topic_prefix) as served:
        full.setattr(server_module, "open_user_store", refuse)
        write_identity(served.log, served.versions[1])
        served.publish(1)
        wait_until(lambda: "disk_full" in served.client.status()["not_ready_because"], WAIT_S, "the reason")
        full.undo()
        served.client.wait_ready(WAIT_S)
        assert served.ask(1, 0).items


@pytest.mark.parametrize("spec", ["full", "no_bid_text_ids"])
def test_every_answer_under_flips_and_deltas_equals_the_version_it_names(
    spec: str, tmp_path: Path, bootstrap_servers: str, topic_prefix: str
) -> None:
    with serve(spec, tmp_path, bootstrap_servers, topic_prefix) as served:
        assert served.client.status()["ready"] is False
        with pytest.raises(Unavailable, match="aif worker"):
            served.ask(1, 0)
        write_identity(served.log, served.versions[1])
        served.publish(1)
        served.client.wait_ready(WAIT_S)
        address = json.loads((tmp_path / "address.json").read_text())
        assert address["url"] == served.client.url
        for number in (2, 3, 4, None):
            for user in range(12):
                current = served.server.engine.status().current
                served.change(current.version, user, user + 40, user + 80)
                served.change(current.version, 3 * user, dead=True)
                served.change(current.version, ITEMS + user)  # a new item
                served.ask(1, user)
            if number is not None:
                served.publish(number)
                wait_until(lambda n=number: served.ask(1, 5).version_token.startswith(f"{n}."), WAIT_S, f"version {number} to be live")
        report = served.audit()
        assert (report.mismatched, report.recomputed) == (0, len(served.recorded)), report.reasons
        assert len(report.versions) == 4
        assert report.error_max > 0, "the server's arithmetic has its own order: exact equality would mean that the audit looks at itself"

        # the audit finds a planted fault
        path = tmp_path / "answers.jsonl"
        with path.open("w") as file:
            for one in served.recorded:
                file.write(
                    json.dumps({"request": one.request.model_dump(mode="json"), "answer": one.answer.model_dump(mode="json")}) + "\n"
                )
        again = read_answers(path)
        assert served.audit(again[:10]).mismatched == 0
        check_planted_faults(served)


def check_planted_faults(served: Served) -> None:
    first = next(one for one in served.recorded if one.answer.version_token.startswith("1."))
    last = served.recorded[-1]
    answer = first.answer
    early = [{**shard, "index-deltas": 0} for shard in last.answer.freshness.watermark]
    planted = {
        "scores of one version under the token of another": answer.model_copy(update={"version_token": last.answer.version_token}),
        "one item's score of another version": answer.model_copy(
            update={
                "items": [answer.items[0], answer.items[1].model_copy(update={"score": answer.items[1].score * 1.001}), *answer.items[2:]]
            }
        ),
        "the best item left out": answer.model_copy(update={"items": answer.items[1:]}),
        "two items changed places": answer.model_copy(update={"items": [answer.items[1], answer.items[0], *answer.items[2:]]}),
        "an unknown item not counted": answer.model_copy(update={"unknown_count": answer.unknown_count - 1}),
    }
    for what, wrong in planted.items():
        assert served.audit([dataclasses.replace(first, answer=wrong)]).mismatched == 1, what
    stale = last.answer.model_copy(update={"freshness": last.answer.freshness.model_copy(update={"watermark": early})})
    assert served.audit([dataclasses.replace(last, answer=stale)]).mismatched == 1, "rows newer than the watermark says"


def test_the_users_topics_reach_the_answers_and_a_hold_keeps_the_version(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    """And where store and view of users are moved to another path, the view is still that of the index."""
    with serve("full", tmp_path / "before", bootstrap_servers, topic_prefix) as served:
        write_identity(served.log, served.versions[1])
        served.publish(1)
        served.client.wait_ready(WAIT_S)
        candidates = [item_id(served.kind, i) for i in range(20)]
        assert served.client.rank(7, candidates).degraded == ["unsigned_items", "cold_user"]  # some have no embedding
        with Publisher(bootstrap_servers, topic_prefix, "test", 2, 1, served.kind) as publisher:
            publisher.publish_user(7, {"age": 0.5})
            publisher.publish_behaviour(Behaviour(user_id=7, item_id=candidates[0], time_ms=1))
            publisher.flush()
        wait_until(
            lambda: sum(sum(p.values()) for p in served.client.status()["user_positions"].values()) == 2,
            WAIT_S,
            "both records to be folded",
        )
        assert served.client.user(7).behaviours == 1
        known = served.client.rank(7, candidates)
        assert (known.rung, known.degraded) == ("cached", ["unsigned_items"])
        served.change(1, 3)
        written = served.client.rank(
            7, candidates, consistency=AtLeast(topic="item-features", partition=_shard(served, 3), offset=served.clock + 1)
        )
        assert written.items != known.items
        served.publish(2, promote=False)
        decide(served.log, EntryKind.PIN, 2)
        wait_until(lambda: served.client.rank(7, candidates).version_token.startswith("2."), WAIT_S, "the pinned version")
        with served.client._http.stream("GET", "/metrics") as page:
            text = page.read().decode()
        assert "aif_version_live 2.0" in text and "aif_users_known 1.0" in text and "aif_flips_total 2.0" in text
    shutil.move(tmp_path / "before", tmp_path / "after")
    with serve("full", tmp_path / "after", bootstrap_servers, topic_prefix) as served:
        served.client.wait_ready(WAIT_S)
        assert served.client.user(7).behaviours == 1 and len(list((tmp_path / "after" / "users").iterdir())) == 1


def _shard(served: Served, place: int) -> int:
    from schemas.ids import partition_of

    return partition_of(item_id(served.kind, place), 2)


def test_answers_of_two_passes_are_verified(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    """At a price at which a short list is ranked in two passes. An answer of one pass under their receipt equals no version."""
    with serve("full", tmp_path, bootstrap_servers, topic_prefix) as served:
        served.versions[1].network.head.din_gain.data.mul_(500.0)  # so that the passes disagree
        write_identity(served.log, served.versions[1])
        served.publish(1)
        served.client.wait_ready(WAIT_S)
        whole = [served.ask(1, user, top_k=5) for user in range(4)]
        served.client.switch_allocation("queue")
        served.server.allocator._find_plan = lambda: 10.0
        wait_until(lambda: served.client.allocation()["lambda"]["plan"] > 0, WAIT_S, "the price")
        twice = [served.ask(1, user, top_k=5) for user in range(4)]
        assert {answer.action for answer in twice} == {"twopass/500"} and {answer.action for answer in whole} == {"full/160"}
        assert all(answer.receipt.passes == 2 and answer.degraded[-1] == "two_passes" for answer in twice)
        assert any(one.items != two.items for one, two in zip(whole, twice, strict=True))
        report = served.audit()
        assert (report.recomputed, report.mismatched) == (8, 0), report.describe()
        wrong = [
            RecordedAnswer(one.request, answer.model_copy(update={"receipt": one.answer.receipt}))
            for one, answer in zip(served.recorded[4:], whole, strict=True)
        ]
        assert served.audit(wrong).mismatched > 0


def test_every_final_order_equals_one_pass_of_the_ranker_of_its_version(tmp_path: Path, bootstrap_servers: str, topic_prefix: str) -> None:
    with serve("ranker", tmp_path, bootstrap_servers, topic_prefix) as served:
        write_identity(served.log, served.versions[1])
        for number in (1, 2):
            served.publish(number)
            wait_until(lambda number=number: served.server.relay.spec(number) is not None, WAIT_S, "the ranker")  # type: ignore[misc]
            for user in range(5):
                answer = served.ask(number, user, final=FinalChoice(top_k=7))
                assert answer.final is not None and answer.final.rung == "inline" and len(answer.items) == 7
            served.change(number, 3, 4)
        report = served.audit()
        assert (report.recomputed, report.mismatched) == (10, 0), report.describe()
        worse = served.recorded[0].answer.items[::-1]
        items = [item.model_copy(update={"score": other.score}) for item, other in zip(worse, worse[::-1], strict=True)]
        wrong = served.recorded[0].answer.model_copy(update={"items": items})
        assert served.audit([RecordedAnswer(served.recorded[0].request, wrong)]).mismatched == 1
