"""Where tests put databases that they open by the hundred: files there wait for no disk. Not for tests that cut the power."""

import os
import shutil

_SHARED = "/dev/shm"
_FREE_BYTES_MIN = 2 << 30  # a container may have 64 MiB of it
_HAS_ROOM = os.access(_SHARED, os.W_OK) and shutil.disk_usage(_SHARED).free >= _FREE_BYTES_MIN
MEMORY = _SHARED if _HAS_ROOM else None  # None: the system's temporary folder
