"""Where tests put databases that they open by the hundred: files there wait for no disk. Not for tests that cut the power."""

import os

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # None: the system's temporary folder
