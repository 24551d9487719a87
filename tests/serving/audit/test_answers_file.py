"""The file of answers that `aif verify-answers` recomputes."""

from pathlib import Path

import pytest

from schemas.errors import RejectedInput
from serving.audit.recorded_answers import read_answers


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"", "has no answer"),
        (b"\n \n", "has no answer"),
        (b"\n{}\n", "line 2 is unreadable"),
        (b"\x1f\x8b\x08\x00", "line 1 is unreadable"),  # gzip
        (b"[" * 100_000, "line 1 is unreadable"),
    ],
)
def test_a_file_without_answers_is_refused(tmp_path: Path, raw: bytes, named: str) -> None:
    """Of an empty one it was said that none of its answers was mixed."""
    path = tmp_path / "answers.jsonl"
    path.write_bytes(raw)
    with pytest.raises(RejectedInput, match=named):
        read_answers(path)
