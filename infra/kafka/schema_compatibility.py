"""Whether a newer JSON Schema accepts everything that an older one accepts (BACKWARD), as far as that can be proved. Pure.

Topics are replayed from their beginning, so the newest reader meets records of every earlier schema. Each newest schema is therefore compared with *all*
older ones (BACKWARD_TRANSITIVE). The one before it is not enough: a field that is removed in 2, and added again in 3 with another type, passes both steps.
Invariant: a difference counts as incompatible unless it is proved to be accepted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")  # the newer one must not be higher
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")  # nor lower
_SAME = ("pattern", "format", "multipleOf", "uniqueItems")  # absent in the newer one, or as it was
_ABOUT = frozenset({"title", "description", "default", "examples", "$schema", "$defs"})  # do not decide acceptance
_STRUCTURE = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "items", "anyOf", "$ref"}
)
_KNOWN = frozenset({*_LOWER, *_UPPER, *_SAME, *_ABOUT, *_STRUCTURE})


def find_incompatibilities(old: Schema, new: Schema) -> list[str]:
    """Where a record of `old` may be refused by `new`, each as `place: what`. Empty: every old record is still accepted."""
    return list(_Comparison(old, new).compare(old, new, "record"))


class _Comparison:
    """Two documents, whose references are looked up in their own `$defs`."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old_defs, self._new_defs = old.get("$defs", {}), new.get("$defs", {})
        self._assumed: set[tuple[str, str]] = set()  # pairs of references under comparison: recursive schemas end

    def compare(self, old: Schema, new: Schema, place: str) -> Iterator[str]:
        """Every reason why `new` at `place` may refuse what `old` accepts."""
        pair = str(old.get("$ref", "")), str(new.get("$ref", ""))
        if all(pair):
            if pair in self._assumed:
                return
            self._assumed.add(pair)
        old, new = self._resolve(old, self._old_defs), self._resolve(new, self._new_defs)
        unknown = (old.keys() | new.keys()) - _KNOWN
        if unknown:
            yield f"{place}: cannot judge {sorted(unknown)}"
        if "anyOf" in old or "anyOf" in new:
            yield from self._compare_alternatives(old, new, place)
            return
        yield from _compare_values(old, new, place)
        yield from _compare_bounds(old, new, place)
        yield from self._compare_objects(old, new, place)
        if "items" in new:
            yield from self.compare(old.get("items", {}), new["items"], f"{place}[]")

    def _resolve(self, schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
        while "$ref" in schema:
            name = str(schema["$ref"]).removeprefix("#/$defs/")
            schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema

    def _compare_alternatives(self, old: Schema, new: Schema, place: str) -> Iterator[str]:
        """Each alternative of the older one fits into one of the newer."""
        wider = new.get("anyOf", [new])
        for n, alternative in enumerate(old.get("anyOf", [old])):
            if not any(not list(self.compare(alternative, other, place)) for other in wider):
                yield f"{place}: alternative {n} ({alternative.get('type', alternative.get('$ref', '?'))}) is not accepted any more"

    def _compare_objects(self, old: Schema, new: Schema, place: str) -> Iterator[str]:
        if "object" not in _types(old):
            return
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{place}.{name}: is required now"
        old_properties, new_properties = old.get("properties", {}), new.get("properties", {})
        others = new.get("additionalProperties", True)
        for name, schema in old_properties.items():
            if name in new_properties:
                yield from self.compare(schema, new_properties[name], f"{place}.{name}")
            else:
                yield from self._compare_other(schema, others, f"{place}.{name}")
        yield from self._compare_open_names(old, new, place)

    def _compare_open_names(self, old: Schema, new: Schema, place: str) -> Iterator[str]:
        """Names that no schema lists."""
        others = new.get("additionalProperties", True)
        old_patterns, new_patterns = old.get("patternProperties", {}), new.get("patternProperties", {})
        for pattern, schema in old_patterns.items():
            if pattern in new_patterns:
                yield from self.compare(schema, new_patterns[pattern], f"{place}.*")
            else:
                yield from self._compare_other(schema, others, f"{place}.{pattern}")
        for pattern in sorted(new_patterns.keys() - old_patterns.keys()):
            yield f"{place}.{pattern}: cannot judge names by another pattern"
        allowed = old.get("additionalProperties", not old_patterns)
        if allowed is False:
            return
        added = sorted(new.get("properties", {}).keys() - old.get("properties", {}).keys())
        if added:
            yield f"{place}: names {added} were free and have a schema now"
        yield from self._compare_other({} if allowed is True else allowed, others, f"{place}.*")

    def _compare_other(self, old: Schema, others: bool | Schema, place: str) -> Iterator[str]:
        """A value of `old` under a name that the newer schema does not list."""
        if others is False:
            yield f"{place}: is not accepted any more"
        elif others is not True:
            yield from self.compare(old, others, place)


def _types(schema: Schema) -> set[str]:
    kinds = schema.get("type")
    if kinds is None:
        return (
            {"object", "array", "string", "number", "integer", "boolean", "null"}
            if "enum" not in schema and "const" not in schema
            else set()
        )
    return set(kinds) if isinstance(kinds, list) else {kinds}


def _compare_values(old: Schema, new: Schema, place: str) -> Iterator[str]:
    """Types and listed values."""
    accepted = _types(new) | ({"integer"} if "number" in _types(new) else set())
    gone = sorted(_types(old) - accepted) if "type" in new else []
    if gone:
        yield f"{place}: type {gone} is not accepted any more"
    listed = new.get("enum", [new["const"]] if "const" in new else None)
    if listed is None:
        return
    before = old.get("enum", [old["const"]] if "const" in old else None)
    if before is None:
        yield f"{place}: only {listed} is accepted now"
    elif missing := [value for value in before if value not in listed]:
        yield f"{place}: {missing} is not accepted any more"


def _compare_bounds(old: Schema, new: Schema, place: str) -> Iterator[str]:
    for names, tighter in ((_LOWER, lambda a, b: b > a), (_UPPER, lambda a, b: b < a)):
        for name in names:
            if name in new and (name not in old or tighter(old[name], new[name])):
                yield f"{place}: {name} was {old.get(name)}, is {new[name]}"
    for name in _SAME:
        if name in new and new[name] != old.get(name):
            yield f"{place}: {name} was {old.get(name)}, is {new[name]}"
