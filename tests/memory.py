"""Where tests put databases that they open by the hundred: files there wait for no disk. Not for tests that cut the power."""

import os
import shutil

_SHARED = "/dev/shm"
_FREE_BYTES_MIN = 2 << 30  # a container may have 64 MiB of it
MEMORY = _SHARED if os.access(_SHARED, os.W_OK) and shutil.disk_usage(_SHARED).free >= _FREE_BYTES_MIN else None  # None: the usual temporary folder
