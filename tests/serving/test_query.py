"""The candidates that `aif query --random` draws."""

from pathlib import Path

import pytest

from infra.index.control_log import ControlLog
from infra.index.store import open_index_store
from schemas.errors import Unavailable
from serving.query import draw_items, read_items
from tests.schemas.model.samples import SPECS
from tests.serving.engine.samples import make_version, stamp
from tests.serving.index_samples import publish_version, write_identity


def test_a_version_without_items_is_named_with_the_command_that_helps(tmp_path: Path) -> None:
    version, store = make_version(SPECS["full"], items=3), open_index_store(str(tmp_path))
    write_identity(log := ControlLog(store), version)
    publish_version(store, log, version, 4)
    assert sorted(draw_items(str(tmp_path), 10, 0)) == sorted(map(str, version.ids))
    publish_version(store, log, version, 5, [(i, stamp(2, dead=1), None) for i in version.ids])
    with pytest.raises(Unavailable, match=r"no_items: version 5 .*`aif index revise 5`"):
        draw_items(str(tmp_path), 10, 0)


def test_a_file_of_candidates_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("7\n8\n", "utf-8-sig")
    assert read_items(tmp_path / "ids") == ["7", "8"]
