"""One process a data directory: a second one waits for the end of the first, then says what to do."""

import errno
from pathlib import Path

import pytest

from infra.index.store import open_index_store
from schemas.errors import Misconfigured, Unavailable
from streams.data_directory import check_holds_no_shard, hold_directory
from streams.faust_shell import EXIT_FAULT, exit_code_of


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = hold_directory(tmp_path / "worker", "AIF_WORKER__DATA_DIR")
    with pytest.raises(Misconfigured, match=r"data_dir_in_use: another process uses .*/worker.*\(AIF_STATISTICS__DATA_DIR\)"):
        hold_directory(tmp_path / "worker", "AIF_STATISTICS__DATA_DIR", wait_s=0.2)
    assert [record.message for record in caplog.records] == [f"another process uses {tmp_path}/worker; waiting up to 0.2 s for it to end"]
    first.close()
    hold_directory(tmp_path / "worker", "AIF_STATISTICS__DATA_DIR", wait_s=0.2).close()


@pytest.mark.parametrize("inside", ["", "shards", "shards/00001"])
def test_a_directory_that_this_user_cannot_write_is_named_before_a_shard_is_opened(
    tmp_path: Path, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests may run as root, whom no permission stops."""
    (tmp_path / "shards" / "00001").mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, _: path != tmp_path / inside)
    with pytest.raises(
        Misconfigured, match=rf"data_dir_unusable: user \d+ cannot use {tmp_path}: {tmp_path / inside} is not.*\(AIF_WORKER__DATA_DIR\)"
    ):
        hold_directory(tmp_path, "AIF_WORKER__DATA_DIR")
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match=r"data_dir_unusable: .*file"):
        hold_directory(tmp_path / "file" / "worker", "AIF_WORKER__DATA_DIR")


def test_a_full_disk_is_no_mistake_of_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(Unavailable, match=f"disk_full: no room for a file in {tmp_path}/worker: .*free disk space") as raised:
        hold_directory(tmp_path / "worker", "AIF_WORKER__DATA_DIR")
    assert exit_code_of(raised.value) == EXIT_FAULT
    with pytest.raises(Unavailable, match=f"disk_full: no room to make the index store '{tmp_path}/store'"):
        open_index_store(f"{tmp_path}/store")


def test_shards_beside_an_empty_index_store_are_named_and_a_directory_without_any_is_fine(tmp_path: Path) -> None:
    check_holds_no_shard(tmp_path / "none", "store")
    (tmp_path / "shards" / "00001").mkdir(parents=True)
    check_holds_no_shard(tmp_path, "store")
    (tmp_path / "shards" / "00001" / "CURRENT").touch()
    with pytest.raises(
        Unavailable, match=r"index_store_gone: the index store s3://b/p is empty, but .* \(00001\): mount or restore .*DATA_DIR"
    ):
        check_holds_no_shard(tmp_path, "s3://b/p")
