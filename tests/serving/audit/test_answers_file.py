"""The file of answers that `aif verify-answers` recomputes."""

from pathlib import Path

import pytest

from schemas.errors import RejectedInput
from serving.audit.recorded_answers import read_answers


@pytest.mark.parametrize(("text", "named"), [("", "has no answer"), ("\n \n", "has no answer"), ("\n{}\n", "line 2 is unreadable")])
def test_a_file_without_answers_is_refused(tmp_path: Path, text: str, named: str) -> None:
    """Of an empty one it was said that none of its answers was mixed."""
    path = tmp_path / "answers.jsonl"
    path.write_text(text)
    with pytest.raises(RejectedInput, match=named):
        read_answers(path)
