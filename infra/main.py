"""The program `aif`: the command line, and a Ctrl-C from its first import on.

Nothing of ours is imported at module level: the imports of the command line take 0.2 s, and a Ctrl-C among them must not be a traceback.
"""

import sys

_INTERRUPTED = 130  # what a shell expects of a process that Ctrl-C has ended, and what typer exits with


def main() -> None:
    """Run the command line. A Ctrl-C, in a command or before there is one, is one word on standard error and exit code 130."""
    try:
        from infra.cli import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            _end_interrupted()
        raise


def _end_interrupted() -> None:
    sys.stderr.write("interrupted\n")
    sys.exit(_INTERRUPTED)
