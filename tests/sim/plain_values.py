"""Values of the shell without the check at each of their fields that nobody sets it twice, which is most of what making one costs.

Here: `unfrozen(kinds)`, a context in which frozen dataclasses are made as plain ones are. Not here: that nobody changes one, which the tests of the shell
hold with the check in place.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

_MISSING = object()


@contextlib.contextmanager
def unfrozen(kinds: Iterable[type]) -> Iterator[None]:
    """See the module. Kinds are frozen, with every field an argument and nothing done after `__init__`."""
    before = [(kind, {name: vars(kind)[name] for name in ("__init__", "__setattr__", "__delattr__")}) for kind in kinds]
    try:
        for kind, _ in before:
            del kind.__setattr__, kind.__delattr__  # type: ignore[misc]
            kind.__init__ = _plain_init(kind)  # type: ignore[misc]
        yield
    finally:
        for kind, methods in before:
            for name, method in methods.items():
                setattr(kind, name, method)


def _plain_init(kind: type) -> Any:
    assert not hasattr(kind, "__post_init__"), kind
    names: dict[str, Any] = {"_MISSING": _MISSING}
    arguments, lines = [], []
    for field in dataclasses.fields(kind):
        assert field.init, field
        value = field.name
        if field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            arguments.append(f"{field.name}=_default_{field.name}")
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            arguments.append(f"{field.name}=_MISSING")
            value = f"_make_{field.name}() if {field.name} is _MISSING else {field.name}"
        else:
            arguments.append(field.name)
        lines.append(f"    self.{field.name} = {value}")
    exec(f"def __init__(self, {', '.join(arguments)}):\n" + "\n".join(lines), names)
    return names["__init__"]
