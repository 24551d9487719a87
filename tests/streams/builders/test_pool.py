"""Builder processes: they do the work, outlive a version, and never outlive their parent."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.fork_server import Template, launch_template
from infra.processes import Child, wait_until
from schemas.errors import RejectedInput, Unavailable
from streams.builders import template as template_module
from streams.builders.full_part import build_full_part
from streams.builders.jobs import BuildJob, BuildResult, DryRunJob
from streams.builders.pool import BuilderPool
from streams.builders.template import StartBuilder, start_from
from tests.streams.digests import digest_blocks
from tests.streams.shard_world import embed, upsert
from tests.streams.version_world import Worker, World, checkpoint_bytes, encoder_of


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """600 items in a shard, a checkpoint of it, and a validated model checkpoint."""
    world = World(tmp_path_factory.mktemp("pool"))
    for start in range(0, 600, 200):
        world.publish_items(*(upsert(i, 1, category=i % 5, price=1.0 + i) for i in range(start, start + 200)))
    world.publish_embeddings(*(embed(i, *(float((i + k) % 9 - 4) for k in range(6))) for i in range(0, 300, 2)))
    worker = Worker(world)
    worker.settle()
    world.want(4)
    worker.settle()
    worker.tasks[0].shard.create_checkpoint(world.folder / "checkpoint")
    worker.close()
    return world


@pytest.fixture(scope="module")
def start(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartBuilder]:
    """Builders are forked, as a worker's are; this process has threads, so the template is one of its own."""
    template = launch_template(["streams.builders.process"], tmp_path_factory.mktemp("template") / "log")
    yield start_from(template, world.store.url)
    template.close()


@pytest.fixture(scope="module")
def pool(start: StartBuilder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuilderPool]:
    with BuilderPool(start, tmp_path_factory.mktemp("logs"), processes=2) as pool:
        yield pool


def job(world: World, **changes: object) -> BuildJob:
    """A job with a checkpoint directory of its own, as every job has: opening one rewrites a file in it."""
    encoder = encoder_of(4)
    own = Path(tempfile.mkdtemp(dir=world.folder)) / "checkpoint"
    shutil.copytree(world.folder / "checkpoint", own)
    fields = {"checkpoint_sha256": encoder.checkpoint_sha256, "encoder_fingerprint": encoder.fingerprint} | changes
    return BuildJob(4, 0, checkpoint_directory=str(own), **fields)  # type: ignore[arg-type]


def digest_of(world: World, result: BuildResult) -> tuple[str, str]:
    from infra.index.parts import read_full_part

    digest = digest_blocks(encoder_of(4), read_full_part(world.store, result.part, encoder_of(4).layout))
    return digest.hexdigest, digest.data_hexdigest


def test_the_digest_does_not_depend_on_processes_or_the_size_of_a_slice(world: World, pool: BuilderPool) -> None:
    expected = world.oracle_shard(0, 4, world.sources_end(0))
    tickets = [pool.submit(job(world, slice_rows=256 * n)) for n in (1, 2, 3, 8)]
    results = [t.future.result(60) for t in tickets]
    inline = build_full_part(world.store, encoder_of(4), job(world, slice_rows=512))
    for result in (*results, inline):
        assert isinstance(result, BuildResult)
        assert digest_of(world, result) == (expected.hexdigest, expected.data_hexdigest)
        assert result.source_offsets == world.sources_end(0)


def test_an_error_comes_back_as_one_of_ours(world: World, pool: BuilderPool) -> None:
    error = pool.submit(job(world, encoder_fingerprint="another machine")).future.exception(60)
    assert getattr(error, "code", "") == "other_encoder"
    assert getattr(pool.submit(job(world, checkpoint_sha256="0" * 64)).future.exception(60), "code", "") == "checkpoint_damaged"
    foreign = pool.submit(job(world, slice_rows=None)).future.exception(60)
    assert getattr(foreign, "code", "") == "builder_failed" and "full_part.py" in str(foreign), "a fault of ours is reported with its place"


def test_a_builder_that_is_killed_fails_its_job_and_another_one_takes_its_place(world: World, start: StartBuilder, tmp_path: Path) -> None:
    with BuilderPool(start, tmp_path) as pool:
        before = pool.pids[0]
        os.kill(before, signal.SIGSTOP)  # so that it is not done before it is killed
        ticket = pool.submit(job(world))
        wait_until(lambda: ticket.progress_at is not None, 30, "the builder to be given the job")
        os.kill(before, signal.SIGKILL)
        error = ticket.future.exception(60)
        assert isinstance(error, Unavailable) and "it was killed" in error.message
        assert isinstance(pool.submit(job(world)).future.result(60), BuildResult)
        assert pool.pids[0] != before
        last = pool.pids[0]
    assert not Path(f"/proc/{last}").exists()


def test_a_builder_that_cannot_be_started_fails_its_job_and_not_the_ones_after_it(
    world: World, start: StartBuilder, tmp_path: Path
) -> None:
    refused = [Unavailable("no_template", "gone"), OSError("no space for a log")]

    def sometimes(name: str, log_path: Path, descriptor: int) -> Child:
        if refused:
            raise refused.pop()
        return start(name, log_path, descriptor)

    with BuilderPool(sometimes, tmp_path, warm=False) as pool:
        assert [getattr(pool.submit(job(world)).future.exception(60), "code", "") for _ in range(2)] == ["builder_machine", "no_template"]
        assert isinstance(pool.submit(job(world)).future.result(60), BuildResult)


def test_builders_are_programs_where_the_template_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []
    monkeypatch.setattr(template_module, "start_child", lambda name, command, *_, **__: executed.append(command))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    start_from(Template(ours, lambda: None), "file:///store")("builder", tmp_path / "log", 0)
    assert executed[0][1:4] == ["-m", "streams.builders.process", "file:///store"]
    ours.close()


def test_an_abandoned_job_frees_its_builder(world: World, start: StartBuilder, tmp_path: Path) -> None:
    started: list[Child] = []

    def start_stopped(name: str, log_path: Path, descriptor: int) -> Child:
        started.append(start(name, log_path, descriptor))
        if len(started) == 1:
            os.kill(started[0].pid, signal.SIGSTOP)  # so that its job is not done before it is abandoned
        return started[-1]

    with BuilderPool(start_stopped, tmp_path, warm=False) as pool:
        assert pool.pids == []  # this one starts with its first job
        running, waiting = pool.submit(job(world)), pool.submit(job(world))
        wait_until(lambda: bool(started), 30, "the builder to be started for the job")
        waiting.abandon()
        running.abandon()
        assert getattr(running.future.exception(60), "code", "") == "abandoned"
        assert waiting.future.cancelled()
        assert isinstance(pool.submit(job(world)).future.result(60), BuildResult)


def test_closing_fails_what_is_not_done(world: World, start: StartBuilder, tmp_path: Path) -> None:
    pool = BuilderPool(start, tmp_path)
    tickets = [pool.submit(job(world)) for _ in range(3)]
    pool.close()
    assert all(getattr(t.future.exception(60), "code", "") in ("builders_closed", "builder_died") for t in tickets)


def test_a_worker_and_its_builders_load_no_torch(world: World, pool: BuilderPool) -> None:
    check = "import streams.worker, streams.builders.process, streams.encoder, sys; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip() == "False"
    for ticket in [pool.submit(job(world, slice_rows=256)) for _ in range(4)]:
        ticket.future.result(60)
    assert not any("torch" in Path(f"/proc/{pid}/maps").read_text() for pid in pool.pids)


def test_dry_runs_have_a_process_of_their_own_that_ends_when_no_other_comes(start: StartBuilder, tmp_path: Path) -> None:
    data, path = checkpoint_bytes(), tmp_path / "checkpoint"
    path.write_bytes(data)
    with BuilderPool(start, tmp_path, warm=False, name="judge", linger_s=600.0) as judge:
        assert judge.submit(DryRunJob(str(path), hashlib.sha256(data).hexdigest())).future.result(60) is None
        error = judge.submit(DryRunJob(str(path), "0" * 64)).future.exception(60)
        assert isinstance(error, RejectedInput) and error.code == "checkpoint_sha256"
        assert len(judge.pids) == 1 and (tmp_path / "judge-0.log").exists()
        judge._linger_s = 0.01  # from the next job on
        assert judge.submit(DryRunJob(str(path), hashlib.sha256(data).hexdigest())).future.result(60) is None
        wait_until(lambda: judge.pids == [], 60, "the process to end")
        assert judge.submit(DryRunJob(str(path), hashlib.sha256(data).hexdigest())).future.result(60) is None


def test_an_error_of_the_disk_is_no_fault_of_the_checkpoint(start: StartBuilder, tmp_path: Path) -> None:
    with BuilderPool(start, tmp_path, warm=False, name="judge") as judge:
        error = judge.submit(DryRunJob(str(tmp_path), "0" * 64)).future.exception(60)  # a folder, so reading it fails
        assert isinstance(error, Unavailable) and error.code == "builder_machine" and "IsADirectoryError" in error.message


def test_a_store_that_is_away_ends_no_dry_run_and_no_builder(world: World, tmp_path: Path) -> None:
    data, path = checkpoint_bytes(), tmp_path / "checkpoint"
    path.write_bytes(data)
    template = launch_template(["streams.builders.process"], tmp_path / "template.log")
    (away := tmp_path / "away").write_bytes(b"")  # not a folder
    with BuilderPool(start_from(template, str(away)), tmp_path, warm=False, name="judge") as judge:
        assert judge.submit(DryRunJob(str(path), hashlib.sha256(data).hexdigest())).future.result(60) is None
        pids = judge.pids
        assert getattr(judge.submit(job(world)).future.exception(60), "code", "") == "index_store_url"
        away.unlink()
        assert getattr(judge.submit(job(world)).future.exception(60), "code", "") == "checkpoint_damaged", "it is there, and empty"
        assert judge.pids == pids
    template.close()
