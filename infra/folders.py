"""Where this user's data and caches are: the XDG folders. Standard library only."""

import os
from pathlib import Path


def user_data_dir() -> Path:
    """What must survive: the local broker's log, the default index store. `$XDG_DATA_HOME/aif`."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "aif"


def user_cache_dir() -> Path:
    """What can be made or fetched again. `$XDG_CACHE_HOME/aif`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aif"
