"""An empty index store for each test of this room."""

from pathlib import Path

import pytest

from infra.index.store import FolderStore, open_index_store


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """In a folder."""
    opened = open_index_store(str(tmp_path / "store"))
    assert isinstance(opened, FolderStore)
    return opened
