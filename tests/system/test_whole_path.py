"""From a published event to a ranked answer, every part a real process; from there to a replay: test_worker_killed.py."""

import itertools
import json
from typing import Any

from infra.processes import wait_until
from lab.demo.stage import json_figures
from lab.plain_client import wire_ids
from schemas.features import Feature, Scope
from schemas.kinds import CATEGORICAL
from schemas.model.spec import ModelSpec
from tests.system.conftest import ITEMS, WAIT_S, System, schema_of


def body(system: System, *numbers: int, user: int = 1, **fields: Any) -> dict[str, Any]:
    ids = wire_ids([system.item_id(n) for n in (numbers or range(ITEMS))])
    return {"user_id": system.item_id(user), "item_ids": ids, "deadline_ms": 10_000, **fields}


def score(system: System, number: int) -> float | None:
    _, answer = system.post("/v1/prerank", body(system, number))
    return answer["items"][0]["score"] if answer["items"] else None


def test_every_item_is_ranked_best_first_and_the_answer_says_what_it_is_made_of(running: System) -> None:
    status, answer = running.post("/v1/prerank", body(running, top_k=ITEMS))
    assert status == 200
    scores = [item["score"] for item in answer["items"]]
    assert len(scores) == ITEMS and scores == sorted(scores, reverse=True) and len(set(scores)) > ITEMS // 2
    assert answer["version_token"].startswith("0.") and answer["unknown_count"] == 0 and answer["degraded"] == []
    assert len(answer["freshness"]["watermark"]) == 2 and answer["freshness"]["age_s"] >= 0


def test_two_calls_give_the_answer_of_one(running: System) -> None:
    _, call_1 = running.post("/v1/user", {"user_id": running.item_id(1), "request_id": "two-calls"})
    _, call_2 = running.post("/v1/rank", body(running, request_id="two-calls", version_token=call_1["version_token"]))
    _, at_once = running.post("/v1/prerank", body(running))
    assert call_2["items"] == at_once["items"] and call_2["version_token"] == call_1["version_token"] and call_2["rung"] == "cached"


def test_a_price_change_a_new_item_and_a_delete_become_visible(running: System) -> None:
    with running.publisher() as publisher:
        before = score(running, 7)
        assert before is not None
        publisher.publish_item(running.item_id(7), 2, running.features(7, price=50.0))
        wait_until(lambda: score(running, 7) not in (before, None), WAIT_S, "the changed price")
        assert score(running, 500) is None
        publisher.publish_new_item(running.item_id(500), running.embedding(500), running.features(500), 1)
        wait_until(lambda: score(running, 500) is not None, WAIT_S, "the new item")
        publisher.publish_delete(running.item_id(8), 2)
        wait_until(lambda: score(running, 8) is None, WAIT_S, "the delete")


def test_unknown_items_and_users_are_answered_and_named(running: System) -> None:
    status, answer = running.post("/v1/prerank", body(running, 1, 2, 9_001, 9_001, user=4_000))
    assert status == 200 and answer["unknown_count"] == 1 and answer["unknown_items"] == wire_ids([running.item_id(9_001)])
    assert {"unknown_items", "cold_user"} <= set(answer["degraded"]) and len(answer["items"]) == 2
    status, answer = running.post("/v1/prerank", body(running, 9_001))
    assert status == 200 and answer["items"] == []


def test_scores_are_those_of_the_reference_model_on_the_same_rows(running: System) -> None:
    check_by_reference(
        running,
        [body(running, user=user, features={"country": "UK"}, behaviours=behaviours_of(running, user), top_k=ITEMS) for user in range(4)],
    )


def check_by_reference(system: System, requests: list[dict[str, Any]]) -> None:
    answers = system.directory / "answers.jsonl"
    answers.write_text("".join(json.dumps({"request": r, "answer": system.post("/v1/prerank", r)[1]}) + "\n" for r in requests))
    figures = json_figures(system.command("verify-answers", str(answers), "--json"))
    assert figures["mixed_versions"] == 0 and figures["answers"] == len(requests)
    first, *others = map(json.loads, answers.read_text().splitlines())
    first["answer"]["items"][0]["score"] *= 1.5
    answers.write_text("".join(json.dumps(line) + "\n" for line in (first, *others)))
    assert "1 answers equal no single version" in system.command("verify-answers", str(answers), exit_code=1)


def behaviours_of(system: System, user: int) -> list[dict[str, Any]]:
    return [
        {"item_id": item, "kind": "click", "time_ms": n}
        for n, item in enumerate(wire_ids([system.item_id(n * 3 + user) for n in range(20)]))
    ]


def test_a_version_of_another_schema_and_width_goes_live_while_requests_are_answered(running: System) -> None:
    spec = ModelSpec(
        schema_of(running.id_kind, 12, Feature("brand", Scope.ITEM, CATEGORICAL, buckets=10)),
        width=12,
        bridges=5,
        bridge_width=4,
        hash_bits=64,
        head_hidden=(16,),
        item_hidden=(16, 8),
        tasks=("click", "buy", "shown"),
        rank_by="click * shown",  # as a model of impressions ranks a catalogue
    )
    with running.publisher() as publisher:
        for n in range(10, 40):
            publisher.publish_new_item(
                running.item_id(n), running.embedding(n, spec.schema.mm_width), {**running.features(n), "brand": f"brand {n % 3}"}, 3
            )
    version = running.publish_checkpoint(running.write_checkpoint("another", 2, spec))
    seen = set()

    def answered() -> bool:
        status, answer = running.post("/v1/prerank", body(running))
        assert status == 200 and len(answer["items"]) >= ITEMS - 1, answer
        seen.add(answer["version_token"].split(".")[0])
        return str(version) in seen

    wait_until(answered, WAIT_S, "an answer of the second version")
    assert json.loads(running.command("index", "list", "--json"))
    check_by_reference(running, [body(running, behaviours=behaviours_of(running, 1), top_k=ITEMS)])


def test_a_backfill_of_another_width_and_schema_is_adopted_beside_live_traffic_and_serving_crosses_to_it_without_a_gap(
    running: System,
) -> None:
    """Where embeddings of the new width come first, the version before has no signatures of these items, and its answers say so until the crossing."""
    schema = schema_of(running.id_kind, 10, Feature("colour", Scope.ITEM, CATEGORICAL, buckets=10))
    spec = ModelSpec(schema, width=16, bridges=4, bridge_width=4, hash_bits=64, head_hidden=(16,), item_hidden=(16,))
    prices, degraded = itertools.count(1), dict[str, set[str]]()
    # Where no worker reads: the replay leaves a copy in the index store.
    file = running.write_checkpoint("backfill", 3, spec).rename(running.directory / "backfill.safetensors")
    with running.publisher() as publisher:
        for n in range(ITEMS):
            publisher.publish_new_item(
                running.item_id(n), running.embedding(n, 10), {**running.features(n), "colour": f"colour {n % 3}"}, 4
            )
    wait_until(lambda: "unsigned_items" in running.post("/v1/prerank", body(running))[1]["degraded"], WAIT_S, "an answer that says so")
    points = ("--from", "earliest", "--to", "end", "--checkpoint", str(file), "--directory", str(running.directory / "backfill"))
    replay = running.start("backfill", "replay", *points, "--adopt", "backfill-10", "--json")

    def crossed() -> bool:
        with running.publisher() as publisher:
            for _ in range(5):
                publisher.publish_item(running.item_id(7), 4 + (price := next(prices)), running.features(7, price=float(price)))
        status, answer = running.post("/v1/prerank", body(running))
        assert status == 200 and len(answer["items"]) == ITEMS, answer
        degraded.setdefault(version := answer["version_token"].split(".")[0], set()).update(answer["degraded"])
        found = running.control_state().versions.get(int(version))
        return found is not None and found.label == "backfill-10"

    wait_until(crossed, WAIT_S, "an answer of the version that was adopted")
    assert running.finish(replay) and len(degraded) == 2
    former, adopted = degraded.values()
    assert "unsigned_items" in former and "unsigned_items" not in adopted
    check_by_reference(running, [body(running, behaviours=behaviours_of(running, 1), top_k=ITEMS)])
    assert json_figures(running.run("replay", "replay", "--json"))["digest_equal"] == 1


def test_a_recorded_query_brings_the_history_of_the_topics_and_is_verified(running: System) -> None:
    items, recorded = running.directory / "candidates", running.directory / "recorded.jsonl"
    items.write_text("".join(f"{running.item_id(n)}\n" for n in range(ITEMS)))
    for user in (1, 4):
        running.command("query", str(running.item_id(user)), "--items", str(items), "--record", str(recorded), "--url", running.url)
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    assert [(line["request"]["features"], len(line["request"]["behaviours"])) for line in lines] == [({"country": "UK"}, 20)] * 2
    figures = json_figures(running.command("verify-answers", str(recorded), "--json"))
    assert (figures["answers_recomputed"], figures["mixed_versions"]) == (2, 0)


def test_a_trace_names_the_candidates_whose_update_was_superseded(running: System) -> None:
    items = running.directory / "traced"
    items.write_text("".join(f"{running.item_id(n)}\n" for n in range(20, 30)))
    with running.publisher() as publisher:
        publisher.publish_item(running.item_id(21), 0, running.features(21, price=77.0))
    told = running.command("query", str(running.item_id(1)), "--items", str(items), "--trace", "--url", running.url)
    assert told.count("was superseded") == 1 and f"item {running.item_id(21)}: its update with version 0" in told
