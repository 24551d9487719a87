"""Dataclasses from the JSON of their fields, as files of the index store hold them. Pure; trusts no value."""

import contextlib
import dataclasses
import enum
import functools
import struct
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from schemas.errors import Corrupted
from schemas.ids import INT64_MAX

D = TypeVar("D")
# What reading raises where bytes are of another form. Also IndexError and KeyError, OverflowError (a number too large), RecursionError (JSON too deep).
_OF_OTHER_FORM = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, struct.error)


@contextlib.contextmanager
def corrupted_as(code: str, what: str, remedy: str = "") -> Iterator[None]:
    """A block that reads stored bytes. The errors of bytes of another form, those of `read_fields` among them, become Corrupted: "what: error; remedy"."""
    try:
        yield
    except _OF_OTHER_FORM as error:
        found = f"{error} is missing" if isinstance(error, KeyError) else error
        raise Corrupted(code, f"{what}: {found}{remedy and f'; {remedy}'}") from error


def read_fields(kind: type[D], raw: Any, least: int = 0) -> D:
    """A dataclass from the JSON of its fields: texts, flags, names of enums, whole numbers from `least` to 2^63 - 1, None, mappings and tuples of them, and
    other dataclasses. Real numbers are not bounded, and may be nan. A value that has its field's type already stays.

    Raises KeyError, TypeError, ValueError, AttributeError, OverflowError; see `corrupted_as`.
    """
    hints = _hints(typing.cast(Any, kind))
    return kind(**{name: _read_value(name, hints[name], value, least) for name, value in raw.items()})


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _read_value(name: str, kind: Any, raw: Any, least: int) -> Any:
    if type(raw) is kind and (kind is not int or least <= raw <= INT64_MAX):
        return raw
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType and types.NoneType in of:
        return None if raw is None else _read_value(name, of[0], raw, least)
    if dataclasses.is_dataclass(kind) and type(raw) is dict:
        return read_fields(typing.cast(Any, kind), raw, least)
    if isinstance(kind, enum.EnumType) and type(raw) is str:
        return kind(raw)
    if kind is float and type(raw) is int:
        return float(raw)
    if origin is tuple and type(raw) is list:
        kinds = of[:1] * len(raw) if of[-1] is Ellipsis else of
        return tuple(_read_value(name, of_one, one, least) for of_one, one in zip(kinds, raw, strict=True))
    if origin is Mapping and type(raw) is dict:
        return {of[0](key): _read_value(name, of[1], one, least) for key, one in raw.items()}
    raise TypeError(f"{name} is {str(raw)[:80]!r}, expected a value of type {kind}, a number from {least} to 2^63 - 1")
