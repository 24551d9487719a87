"""The limit of open files of a process: RocksDB keeps its table files open, and each connection is one.

Here: raising it at the start of a long-lived process. Not here: how many are open (`process_open_fds` and `..._table_files` of the metrics page).
"""

import logging
import resource

FILES_MIN = 4_096
_log = logging.getLogger("aif.open_files")


def raise_file_limit() -> int:
    """Raise the soft limit to the hard one, and warn if it is still below FILES_MIN. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:  # as where a hard limit is "unlimited" and the kernel's is not
            _log.warning("open_files_limit: the limit of open files stays at %d: %s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        _log.warning("open_files_limit: at most %d files may be open, expected at least %d; raise it with `ulimit -Hn`", soft, FILES_MIN)
    return soft
