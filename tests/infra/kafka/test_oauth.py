"""A token is used for as long as it holds."""

import base64
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra.kafka import oauth
from infra.kafka.oauth import TokenSource
from schemas.errors import Unavailable


def test_a_token_is_used_to_its_end_while_no_other_can_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 200.0}).encode()).decode().rstrip("=")
    file, clock = tmp_path / "token", SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(oauth, "time", SimpleNamespace(time=lambda: clock.now_s))
    file.write_text(f"head.{claims}.signature")
    source = TokenSource("", "", lambda: "", "", file)
    held = source.fetch()
    assert held[1] == 200.0
    file.unlink()
    for clock.now_s in (179.0, 181.0, 199.0):
        assert source.fetch() == held
    clock.now_s = 200.0
    with pytest.raises(Unavailable, match="kafka_no_token"):
        source.fetch()
