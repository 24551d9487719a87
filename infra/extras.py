"""The extras of the distribution, and the error for a command that needs one that is not installed.

Standard library only.
"""

from schemas.errors import Misconfigured

# Commands that are not named need everything: `aif[all]`.
EXTRA_OF_COMMAND = {
    "allocate": "train",
    "broker": "broker",
    "config": "train",
    "dlq": "serve",
    "doctor": "serve",
    "import": "train",
    "query": "serve",
    "replay": "worker",
    "serve": "serve",
    "shards": "worker",
    "statistics": "worker",
    "status": "serve",
    "train": "train",
    "worker": "worker",
}
ALL = "all"
_OURS = ("aif", "infra", "lab", "schemas", "serving", "streams")


def name_missing_extra(error: ModuleNotFoundError, what: str, extra: str) -> Misconfigured:
    """The error for `what` ("aif worker"), which needs the extra that would bring a module. Raises `error` again if the module is one of ours."""
    module = (error.name or "").partition(".")[0]
    if not module or module in _OURS:
        raise error
    return Misconfigured(
        "extra_missing", f"{what} needs {module}, which is not installed; run `pip install 'aif[{extra}]'` (in a clone: `uv sync`)"
    )
