"""What comes in broken, through the topics and the ports, and files that rot: the reason is said, and the running version keeps serving (I6, I7).

One system for all of them, and for test_whole_path.py before them, with a version live at the start. Each test leaves it serving.
"""

import json
import math
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from infra.files import sha256_of_file
from infra.processes import wait_until
from lab.demo.stage import SHARDS
from schemas.ids import partition_of
from schemas.index.lifecycle import State
from schemas.index.manifest import manifest_path
from schemas.limits import BODY_BYTES_MAX, RECORD_BYTES_MAX
from schemas.model.checkpoint import read_checkpoint, write_checkpoint
from schemas.topics import ITEM_FEATURES, MODEL_CHECKPOINTS, NEW_ITEMS, USER_BEHAVIOURS, USER_FEATURES
from streams.builders.canary_scores import make_users
from streams.core.canary import CanaryRules
from tests.system.conftest import EMBEDDING_WIDTH, ITEMS, WAIT_S, System, schema_of
from tests.system.test_whole_path import body, score

SHARD = 1  # bad records go here


def all_scores(system: System) -> list[tuple[int, float]]:
    status, answer = system.post("/v1/prerank", body(system, top_k=ITEMS))
    assert status == 200, answer
    return [(item["item_id"], item["score"]) for item in answer["items"]]


# --- records ---------------------------------------------------------------------------------------------------------


def new_ids(shard: int, start: int) -> Iterator[int]:
    """Ids nobody knows, of one shard."""
    return (n for n in range(start, start + 10_000) if partition_of(n, SHARDS) == shard)


def record(*updates: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"schema": 1, "updates": list(updates), **fields}).encode()


def bad_features(good: Iterator[int], stray: int) -> list[tuple[bytes | None, dict[int, str]]]:
    """Records of item-features, and which of their updates have to be refused with which code."""

    def item(**changes: Any) -> dict[str, Any]:
        return {"item_id": next(good), "version": 1, "features": {"category": 1, "price": 2.0}, **changes}

    return [
        (b"{not json", {0: "not_json"}),
        (b'{"schema": 1, "updates": [{"item_id": "\xff\xfe"}]}', {0: "not_json"}),
        (b"[" * 100_000, {0: "not_json"}),
        (None, {0: "empty_record"}),
        (b" " * (RECORD_BYTES_MAX + 1), {0: "record_too_large"}),
        (record(*(item() for _ in range(257))), {0: "bad_record"}),
        (record(item(), item(features={"price": math.nan}), item()), {1: "bad_update"}),
        (record(item(), item(features={"image": [0.5] * 5_000}), item()), {1: "bad_update"}),
        (record(item(item_id=stray), item()), {0: "wrong_partition"}),
        (record(item(colour="red"), item()), {0: "bad_update"}),
        (record(item(), colour="red"), {0: "bad_record"}),
        (record(item(item_id=2**63), item(item_id=1.5), item(version=-1)), {0: "bad_update", 1: "bad_update", 2: "bad_update"}),
        (record(item(item_id="x y"), item()), {0: "bad_id"}),
        (record(item(features={"price": "\udcff"})), {0: "not_json"}),  # half a character
    ]  # fmt: skip


def bad_embeddings(good: Iterator[int]) -> list[tuple[bytes | None, dict[int, str]]]:
    """The same of new-items."""

    def item(*values: float) -> dict[str, Any]:
        return {"item_id": next(good), "embedding": list(values) or [0.5] * EMBEDDING_WIDTH}

    return [
        (record(item(), item(math.nan), item()), {1: "bad_update"}),
        (record(item(1e39), item()), {0: "bad_update"}),
        (record(item(*[0.5] * 2_000), item()), {0: "bad_update"}),
        (b"\x00\x01", {0: "not_json"}),
    ]


def bad_behaviours(good: int, stray: int) -> list[tuple[bytes | None, dict[int, str]]]:
    """The same of user-behaviours, which servers judge."""

    def behaviour(**changes: Any) -> dict[str, Any]:
        return {"user_id": good, "item_id": 1, "time_ms": 1, **changes}

    return [
        (b"\xff{not json", {0: "not_json"}),
        (None, {0: "empty_record"}),
        (b" " * (RECORD_BYTES_MAX + 1), {0: "record_too_large"}),
        (json.dumps({"schema": 2, "updates": [behaviour()]}).encode(), {0: "bad_record"}),
        (record(behaviour(), behaviour(user_id=stray), behaviour(item_id="x y")), {1: "wrong_partition", 2: "bad_id"}),
        (record(behaviour(time_ms="now"), behaviour()), {0: "bad_update"}),
    ]


def bad_profiles(stray: int) -> list[tuple[bytes | None, dict[int, str]]]:
    """The same of user-features."""
    return [
        (b"[" * 100_000, {0: "not_json"}),
        (None, {0: "bad_id"}),  # its key is no id
        (json.dumps({"schema": 1, "user_id": stray, "features": {}}).encode(), {0: "wrong_partition"}),
    ]


def test_bad_records_are_dead_lettered_once_with_the_reason_and_their_neighbours_are_applied(running: System) -> None:
    cases = [
        (ITEM_FEATURES, value, wrong)
        for value, wrong in bad_features(new_ids(SHARD, 10_000), next(new_ids(1 - SHARD, 10_000)))
    ] + [(NEW_ITEMS, value, wrong) for value, wrong in bad_embeddings(new_ids(SHARD, 30_000))]  # fmt: skip
    user, stranger = next(new_ids(SHARD, 70_000)), next(new_ids(1 - SHARD, 70_000))
    of_users = [(USER_BEHAVIOURS, *case) for case in bad_behaviours(user, stranger)] + [
        (USER_FEATURES, *case) for case in bad_profiles(stranger)
    ]
    sent = [(topic, running.produce(topic, SHARD, value), wrong) for topic, value, wrong in cases]
    sent += [(topic, running.produce(topic, SHARD, value, b"\xff"), wrong) for topic, value, wrong in of_users]
    # Not bad: whether a value fits is the model's affair, which takes its default instead.
    odd = {"category": [1, 2], "price": "cheap", "stock": None, "never_heard_of": True}
    odd_id, last_id = next(new_ids(SHARD, 50_000)), next(new_ids(SHARD, 60_000))
    running.produce(NEW_ITEMS, SHARD, record({"item_id": odd_id, "embedding": [1.0, 2.0]}))
    running.produce(ITEM_FEATURES, SHARD, record({"item_id": odd_id, "version": 1, "features": odd}))
    with running.publisher() as publisher:
        publisher.publish_new_item(last_id, running.embedding(1), running.features(1), 1)
    wait_until(lambda: score(running, last_id) is not None, WAIT_S, "the item after the bad records")
    assert score(running, odd_id) is not None
    accepted = [u["item_id"] for t, s, wrong in sent if t == ITEM_FEATURES for i, u in enumerate(updates_of(s.value)) if whole(wrong, i)]
    assert len(accepted) >= 6 and all(score(running, item) is not None for item in accepted)

    expected = {(s.topic, SHARD, s.offset, index, code): (s.key, s.value) for _, s, wrong in sent for index, code in wrong.items()}
    topics = (ITEM_FEATURES, NEW_ITEMS, USER_BEHAVIOURS, USER_FEATURES)
    wait_until(lambda: sum(len(running.dead_letters(topic)) for topic in topics) >= len(expected), WAIT_S, "the dead letters of the server")
    found = [(d, r) for topic in topics for d, r in running.dead_letters(topic)]
    assert {(d.topic, d.partition, d.offset, d.index, d.code): (r.key, r.value) for d, r in found} == expected
    assert len(found) == len(expected) and all(d.reason and d.disposition in ("malformed", "schema", "semantic") for d, _ in found)


def updates_of(value: bytes | None) -> list[dict[str, Any]]:
    try:
        return list(json.loads(value or b"")["updates"])
    except (ValueError, RecursionError):
        return []


def whole(wrong: dict[int, str], index: int) -> bool:
    """Whether the update at `index` is one that has to be applied."""
    return index not in wrong and not {"bad_record", "record_too_large"} & set(wrong.values())


# --- checkpoints -----------------------------------------------------------------------------------------------------


def with_nan(path: Path) -> Path:
    """The same file with one weight that is not a number, otherwise valid."""
    tensors = load_file(path)
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    weight = next(name for name in sorted(tensors) if tensors[name].dtype.kind == "f" and tensors[name].ndim == 2)
    tensors[weight][0, 0] = math.nan
    save_file(tensors, out := path.with_name("nan.safetensors"), metadata)
    return out


def truncated(path: Path) -> Path:
    out = path.with_name("truncated.safetensors")
    out.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return out


def test_bad_checkpoints_are_rejected_with_a_reason_and_a_later_good_one_goes_live(running: System) -> None:
    before, token = all_scores(running), running.status()["version_token"]
    good = running.write_checkpoint("good", seed=7)
    outside = Path(shutil.copy(good, running.directory / "outside.safetensors"))
    pickled = good.with_name("pickled.safetensors")
    pickled.write_bytes(pickle.dumps({"weight": [1.0]}))
    link = good.with_name("link.safetensors")
    link.symlink_to(outside)
    publish = running.publish_checkpoint
    expected = {
        publish(with_nan(good)): "checkpoint_not_finite",
        publish(good, sha256="0" * 64): "checkpoint_sha256",
        publish(truncated(good)): "checkpoint_",
        publish(good, size_bytes=good.stat().st_size + 1): "checkpoint_size",
        publish(good, uri=pickled.as_uri(), size_bytes=pickled.stat().st_size, sha256=sha256_of_file(pickled)): "checkpoint_unreadable",
        publish(good, uri=outside.as_uri()): "checkpoint_outside_root",
        publish(good, uri=f"{good.parent.as_uri()}/../{outside.name}"): "checkpoint_uri",
        publish(good, uri=link.as_uri()): "checkpoint_outside_root",
        publish(good, uri=f"http://127.0.0.1:{running.port}/v1/status"): "checkpoint_uri",
        publish(good, uri=good.with_name("nowhere.safetensors").as_uri()): "unreachable",
        publish(good, feature_schema="0" * 16): "checkpoint_schema",
        publish(good, model_id="another"): "checkpoint_model_id",
        running.produce(MODEL_CHECKPOINTS, 0, b"load this, please").offset: "not_json",
        running.produce(MODEL_CHECKPOINTS, 0, b'{"schema": 1, "uri": 7}').offset: "bad_record",
    }
    state = running.wait_state(lambda s: s.newest_decided >= max(expected), "the last bad checkpoint to be decided")
    decided = {version: (state.versions[version].state, state.versions[version].reason.split(":")[0]) for version in expected}
    assert {version: code for version, (_, code) in decided.items() if not code.startswith(expected[version])} == {}
    assert {found for found, _ in decided.values()} == {State.REJECTED}
    letters = {d.offset: d.code for d, _ in running.dead_letters(MODEL_CHECKPOINTS)}
    assert letters == {version: code for version, (_, code) in decided.items()}
    listed = running.command("index", "list", "--all")
    assert all(code in listed for code in letters.values()), listed
    assert all_scores(running) == before and running.status()["version_token"] == token
    running.go_live("good", seed=7)
    assert all_scores(running) != before


# --- versions that go wrong in traffic ---------------------------------------------------------------------------------


def unheard_of_country(system: System) -> tuple[str, int]:
    """A country, and its bucket, that no check draws before a version is live, the canary included."""
    schema = schema_of(system.id_kind)
    country = next(f for f in schema.features if f.name == "country")
    drawn = {country.encode_one(user.profile["country"]) for user in make_users([schema], [], CanaryRules().users)} | {
        country.encode_one("UK"),
        0,
    }
    return next((name, bucket) for name in map("land {}".format, range(1_000)) if (bucket := country.encode_one(name)) not in drawn)


def overflowing(path: Path, bucket: int) -> Path:
    """The same model with finite weights that make no number for users of one country."""
    network = read_checkpoint(path.read_bytes(), sha256_of_file(path)).network
    with torch.no_grad():
        network.user_half.features.table[bucket] = torch.finfo(torch.float32).max
    write_checkpoint(out := path.with_name("overflowing.safetensors"), network, "model-overflowing", {})
    return out


def test_a_version_that_servers_report_as_bad_is_left_for_the_one_before_and_held_and_does_not_come_back(running: System) -> None:
    before = all_scores(running)
    good = int(running.status()["version_token"].split(".")[0])
    country, bucket = unheard_of_country(running)
    bad = running.publish_checkpoint(overflowing(running.write_checkpoint("turning", seed=9), bucket))
    running.wait_served(bad)
    assert all(math.isfinite(score) for _, score in all_scores(running))

    def left() -> bool:
        for _ in range(10):
            running.post("/v1/prerank", body(running, features={"country": country}))
        return running.control_state().live == good

    wait_until(left, WAIT_S, "the worker to leave the version that servers report as bad", poll_s=0.5)
    running.wait_served(good)
    assert all_scores(running) == before
    state = running.control_state()
    assert (state.live, state.held) == (good, True) and state.versions[bad].turned_away
    assert "servers report faults" in state.versions[bad].reason, state.versions[bad].reason
    for _ in range(20):
        status, answer = running.post("/v1/prerank", body(running, features={"country": country}))
        assert status == 200 and answer["version_token"].startswith(f"{good}.")
    running.command("index", "release")
    running.go_live("after-the-release", seed=10)
    assert running.control_state().versions[bad].state is not State.LIVE


# --- files that rot --------------------------------------------------------------------------------------------------


def damaged(system: System, version: int, damage: Callable[[int], Path]) -> Path:
    """Waits until a version is live in the log, then damages a file of it; the file."""
    system.wait_state(lambda s: s.current is not None and s.current.version == version, f"version {version} to be live in the log")
    return damage(version)


def flip_a_byte(system: System, version: int) -> Path:
    file = max((system.directory / "index" / "versions" / str(version) / "full").rglob("*.sst"), key=lambda p: p.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file


def truncate_the_manifest(system: System, version: int) -> Path:
    revision = system.control_state().versions[version].revision
    file = system.directory / "index" / manifest_path(version, revision)
    file.write_bytes(file.read_bytes()[:-20])
    return file


def test_a_flipped_byte_in_a_sealed_table_is_named_never_served_and_mended_by_a_new_checkpoint(running: System) -> None:
    before, token = all_scores(running), running.status()["version_token"]
    server = running.child("server")
    os.kill(server.pid, signal.SIGSTOP)
    version = running.publish_checkpoint(running.write_checkpoint("flipped", seed=11))
    file = damaged(running, version, lambda v: flip_a_byte(running, v))
    os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: file.parent.name + "/" + file.name in running.status()["last_error"], WAIT_S, "the server to name the damaged file")
    assert all_scores(running) == before and running.status()["version_token"] == token and running.status()["ready"]
    assert file.parent.name + "/" + file.name in running.command("index", "verify", str(version), exit_code=1)
    running.go_live("mended", seed=12)
    wait_until(lambda: running.status()["last_error"] == "", WAIT_S, "the error to be forgotten, which is after the flip")


def test_a_server_that_starts_on_a_truncated_manifest_says_so_serves_what_is_whole_and_is_mended_by_a_new_checkpoint(
    running: System,
) -> None:
    before, token = all_scores(running), running.status()["version_token"]
    running.kill_hard("server")
    version = running.publish_checkpoint(running.write_checkpoint("truncated", seed=13))
    file = damaged(running, version, lambda v: truncate_the_manifest(running, v))
    name = file.relative_to(running.directory / "index").as_posix()
    running.start_server()
    running.server().close()
    wait_until(lambda: name in running.status()["last_error"], WAIT_S, "the server to name the damaged manifest")
    assert all_scores(running) == before and running.status()["version_token"] == token  # the backup version, whole
    assert name in running.command("index", "verify", str(version), exit_code=1)
    running.go_live("mended-again", seed=14)
    wait_until(lambda: running.status()["last_error"] == "", WAIT_S, "the error to be forgotten, which is after the flip")


def test_a_server_killed_and_started_again_gives_the_same_scores_of_the_same_version(running: System) -> None:
    before, token = all_scores(running), running.status()["version_token"]
    running.kill_hard("server")
    running.start_server()
    running.server().close()
    assert all_scores(running) == before and running.status()["version_token"] == token


# --- requests --------------------------------------------------------------------------------------------------------


def test_bad_requests_get_a_named_error_and_the_server_goes_on(running: System) -> None:
    before, token = all_scores(running), running.status()["version_token"]
    good = body(running, 1, 2, 3)
    many, million = (b'{"user_id": 1, "item_ids": [' + b",".join(b"%d" % n for n in range(count)) + b"]}" for count in (200_000, 1_000_000))
    assert len(million) < BODY_BYTES_MAX
    gone = token.replace(token.split(".")[0], "999999", 1)
    cases: dict[str, tuple[str, bytes | dict[str, Any], int, str]] = {
        "not JSON": ("/v1/prerank", b"user=1&items=2", 400, "not_json"),
        "empty": ("/v1/prerank", b"", 400, "not_json"),
        "not UTF-8": ("/v1/prerank", b'{"user_id": "\xff\xfe", "item_ids": [1]}', 400, "not_json"),
        "a list": ("/v1/prerank", b"[1, 2]", 422, "bad_request"),
        "deep": ("/v1/prerank", b"[" * 1_000_000, 400, "json_too_deep"),
        "200,000 candidates": ("/v1/prerank", many, 422, "too_many_candidates"),
        "10^6 candidates": ("/v1/prerank", million, 413, "json_too_large"),
        "no candidates": ("/v1/prerank", {**good, "item_ids": []}, 422, "bad_request"),
        "a number for a list": ("/v1/rank", {**good, "item_ids": 7}, 422, "bad_request"),
        "a user that is a list": ("/v1/user", {"user_id": [1]}, 422, "bad_request"),
        "an unknown field": ("/v1/user", {"user_id": 1, "colour": "red"}, 422, "bad_request"),
        "NaN": ("/v1/prerank", b'{"user_id": 1, "item_ids": [1], "context": {"hour": NaN}}', 422, "bad_request"),
        "an id of another kind": ("/v1/prerank", {**good, "item_ids": ["shoe"]}, 422, "bad_id"),
        "top_k of 0": ("/v1/prerank", {**good, "top_k": 0}, 422, "bad_request"),
        "no such route": ("/v1/preränk", good, 404, "no_such_route"),
        "above 8 MiB": ("/v1/prerank", b" " * (BODY_BYTES_MAX + 1), 413, "body_too_large"),
        "a garbage token": ("/v1/rank", {**good, "version_token": "yesterday's"}, 422, "bad_version_token"),
        "a version that is gone": ("/v1/rank", {**good, "version_token": gone, "consistency": "pinned"}, 409, "version_gone"),
    }
    found = {name: running.post(path, content) for name, (path, content, _, _) in cases.items()}
    assert {name: (status, answer["code"]) for name, (status, answer) in found.items()} == {
        name: (status, code) for name, (_, _, status, code) in cases.items()
    }
    assert all(answer["message"] for _, answer in found.values())
    status, answer = running.post("/v1/rank", {**good, "version_token": gone})
    assert status == 200 and "version_changed" in answer["degraded"] and answer["version_token"] == token
    assert all_scores(running) == before
