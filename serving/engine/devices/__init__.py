"""Which scorer a device has, and the threads that help."""
