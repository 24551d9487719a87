"""`aif shards` without arguments reads the directory of this machine's worker."""

from pathlib import Path

import pytest

from schemas.errors import Unavailable
from streams.shard import cli


def test_the_data_directory_is_the_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AIF_WORKER__DATA_DIR", str(tmp_path))
    with pytest.raises(Unavailable, match="no_shards"):
        cli.show_shards()
    (tmp_path / "shards" / "00001").mkdir(parents=True)
    counts = {"item-features": {"consumed": 3, "applied": 2, "superseded": 1, "dead_lettered": 0}}
    row = {"shard": 1, "next_offsets": {"item-features": 7}, "counts": counts, "versions": {4: "writes"}}
    monkeypatch.setattr(cli, "describe_shard", lambda _: row)
    cli.show_shards()
    header, line = capsys.readouterr().out.splitlines()
    assert header.split("  ")[0] == "shard" and line.split() == ["1", "7", "3", "2", "1", "0", "4", "writes"]
