"""`aif train --follow` as a process: it starts from the live version of the control log, reports its work, and SIGTERM ends it in order."""

import functools
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from infra.files import sha256_of_file
from infra.index.control_log import ControlLog, ensure_init
from infra.index.store import open_index_store
from infra.kafka.admin import apply_topics
from infra.processes import Child, free_ports, start_child, stop_all, wait_until
from infra.settings import load_settings
from schemas.errors import Misconfigured
from schemas.ids import IdKind
from schemas.index.control import Entry, Init
from schemas.index.lifecycle import Cause, EntryKind
from schemas.index.manifest import checkpoint_path
from streams.data_directory import hold_directory
from streams.training.following import follower_program
from streams.training.following.follower_program import FollowPlan
from streams.training.settings import TrainSettings
from streams.training.trainer_state import StateFile
from tests.streams.training.following.stream import TasteStream, write_base
from tests.streams.training.shop import publish


def make_live(store_folder: Path, checkpoint: Path) -> None:
    """A control log whose live version has this checkpoint; no test reads its rows."""
    store = open_index_store(str(store_folder))
    sha256, log = sha256_of_file(checkpoint), ControlLog(open_index_store(str(store_folder)))
    ensure_init(log, Init(2, 2, IdKind.INT64, {}), 1, "test")
    store.put_bytes(checkpoint_path(sha256), checkpoint.read_bytes())
    for entry in (
        Entry(EntryKind.WANT, 1, "test", 0, cause=str(Cause.CHECKPOINT), checkpoint_sha256=sha256, model_id="base"),
        Entry(EntryKind.PUBLISH, 1, "test", 0, manifest_sha256="0" * 64),
        Entry(EntryKind.PROMOTE, 1, "test", 0),
    ):
        log.append(lambda _, e=entry: e)  # type: ignore[misc]


def lines(child: Child) -> list[dict[str, Any]]:
    return [json.loads(line) for line in child.log_path.read_text().splitlines() if line.startswith(('{"re', '{"ro'))]


def test_a_second_follower_in_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wrote one state and one series of checkpoints."""
    monkeypatch.setattr(follower_program, "hold_directory", functools.partial(hold_directory, wait_s=0.0))
    monkeypatch.setattr(follower_program, "open_follower", lambda *_: pytest.fail("it began"))
    with hold_directory(tmp_path, "--state"), pytest.raises(Misconfigured, match="data_dir_in_use"):
        follower_program.run_follower(load_settings(TrainSettings, environment={}), FollowPlan(out=tmp_path), print)


def test_a_process_follows_from_the_live_version_tells_and_ends_in_order(bootstrap_servers: str, topic_prefix: str, tmp_path: Path) -> None:
    apply_topics(bootstrap_servers, topic_prefix, 2, 2)
    stream = TasteStream()
    publish(bootstrap_servers, topic_prefix, stream.catalogue())
    make_live(tmp_path / "store", write_base(tmp_path / "base.safetensors", stream))
    (port,) = free_ports(1)
    variables = {
        "AIF_KAFKA__BOOTSTRAP_SERVERS": bootstrap_servers,
        "AIF_KAFKA__TOPIC_PREFIX": topic_prefix,
        "AIF_INDEX__STORE": str(tmp_path / "store"),
        "AIF_INDEX__SHARDS": "2",
        "AIF_INDEX__USER_PARTITIONS": "2",
        "AIF_TRAIN__STATUS_EVERY_S": "0.1",
    }
    options = ["--follow", "--out", str(tmp_path / "out"), "--metrics-port", str(port), "--late-after", "1e12"]
    command = [sys.executable, "-c", "from infra.cli import main; main()", "train", *options]
    child = start_child("follower", command, tmp_path / "log", environment=variables)
    try:
        wait_until(lambda: bool(lines(child)) or not child.alive(), 120, "the follower to be ready")
        ready = lines(child)[0]
        assert ready["base"] == "base" and ready["begins"] == "end of the log"
        publish(bootstrap_servers, topic_prefix, stream.events(40))
        wait_until(lambda: lines(child)[-1].get("requests") == 40, 120, "40 impressions to be learnt")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        assert 'aif_train_impressions_total{outcome="learnt"} 40.0' in page and "aif_train_publishing 1.0" in page
        os.kill(child.pid, signal.SIGTERM)
        wait_until(lambda: not child.alive(), 120, "the follower to end")
        assert child.process.wait() == 0, child.log_tail()
        kept = StateFile(tmp_path / "out" / "aif.state").read()
        assert kept is not None and kept.about["place"]["requests"] == 40 and kept.about["place"]["next"] is None
    finally:
        stop_all([child])
