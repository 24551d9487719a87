"""One worker a data directory: a second one waits for the end of the first, then says what to do."""

from pathlib import Path

import pytest

from schemas.errors import Misconfigured
from streams.data_directory import hold_directory


def test_a_second_worker_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    first = hold_directory(tmp_path / "worker")
    with pytest.raises(Misconfigured, match=r"data_dir_in_use: another worker uses .*/worker.*AIF_WORKER__DATA_DIR"):
        hold_directory(tmp_path / "worker", wait_s=0.2)
    first.close()
    hold_directory(tmp_path / "worker", wait_s=0.2).close()
