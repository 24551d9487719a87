"""Where nobody watches, what goes on is told in lines, not too often: a log of an hour's training is neither empty nor long."""

import pytest

from infra.progress import counted, open_progress, tell_parts


def test_a_log_file_gets_a_line_of_what_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress(every_s=0.0) as progress:
        tell_parts(progress, "rows of [{}]")("items", 65_536, 92_331)
        assert len(list(counted(range(1_500), progress, "behaviours"))) == 1_500
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["rows of [items]: 65,536 of 92,331", "behaviours: 1,000", "behaviours: 1,500 of 1,500"]


def test_lines_are_far_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with open_progress() as progress:
        assert len(list(counted(range(5_000), progress, "behaviours"))) == 5_000
    assert not capsys.readouterr().err
