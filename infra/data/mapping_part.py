"""What every table of a mapping file has in common: pydantic checks its values, and a key that it does not know is an error with a suggestion.

Here: `Part`, the base of the tables; types that several of them use; pydantic's errors as those of a mapping file. Not here: which keys there are
(mapping.py, mapping_source.py).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo

from schemas.errors import Misconfigured, suggest

SAMPLED = "impressions without a file"  # how the section is told from the other one of its name
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(gt=0, lt=1e12)]
_listed = BeforeValidator(lambda raw: (raw,) if isinstance(raw, str) else raw)  # one text alone is a list of it
Texts = Annotated[tuple[str, ...], _listed, Field(strict=False)]


def reject(path: Path, key: str, expectation: str) -> Misconfigured:
    """The error of a mapping file (`bad_mapping`): which file, which key, and what is expected there."""
    return Misconfigured("bad_mapping", f"{path.name}: {f'{key} {expectation}'.strip()}; docs/IMPORT.md describes the file")


class Part(BaseModel):
    """A table of the file. A field that is excluded is no key of it; `hint` is said of a key that is not known."""

    model_config = ConfigDict(frozen=True, strict=True, populate_by_name=True)
    hint: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _require_known_keys(cls, raw: Any, info: ValidationInfo) -> Any:
        """First of all: a misspelt key says more than a missing one. Not for what is made in code, by the names of the fields."""
        if info.context is not None and isinstance(raw, Mapping):
            require_known(
                raw, [key for name, field in cls.model_fields.items() if not field.exclude for key in _keys(name, field)], cls.hint
            )
        return raw


def require_known(raw: Mapping[str, Any], keys: Iterable[str], hint: str = "") -> None:
    """Raises ValueError for the first key that is none of these, with the nearest."""
    for key in raw:
        if key not in keys:
            raise ValueError(f"{key} is not known here{hint}; {suggest(key, {*keys} - {SAMPLED})}")


def _keys(name: str, field: FieldInfo) -> list[str]:
    names = field.validation_alias
    return [str(choice) for choice in names.choices] if isinstance(names, AliasChoices) else [str(names or name)]


def rejected(path: Path, error: ValidationError) -> Misconfigured:
    """The first of pydantic's errors as one of the mapping file."""
    first = error.errors(include_url=False)[0]
    section, *keys = [str(part) for part in first["loc"]] or [""]
    section = section.removesuffix(" without a file")
    key = ".".join(keys)
    place = f"[{section}] {key}".strip() if (section and first["type"] != "string_type") or key else section
    return reject(path, place, _expectation(first, section, key))


def _expectation(error: Any, section: str, key: str) -> str:
    """What is wrong with the value, and what is expected."""
    context, value = error.get("ctx", {}), error["input"]
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] == "missing":
        if not key:
            return f"is missing: every mapping says where the {section} are, with at least `file` and `id`"
        return (
            "is missing, expected text"
            if key == "file"
            else f"is missing: name the column that holds the {key}; a constant is written {{ value = ... }}"
        )
    expected = {
        "string_type": "text",
        "string_too_short": "text",
        "bool_type": "true or false",
        "int_type": "a whole number",
        "float_type": "a number",
        "tuple_type": "text or a list of texts",
        "dict_type": "a table",
        "model_type": "a table",
        "model_attributes_type": "a table",
        "greater_than": "a number above {gt:g}",
        "less_than": "a number below {lt:g}",
        "greater_than_equal": "a whole number from {ge}" if isinstance(context.get("ge"), int) else "a number from {ge:g}",
    }.get(error["type"])
    if error["type"] in ("literal_error", "enum"):
        expected = f"one of {context['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    return f"is {value!r}, expected {expected.format(**context)}" if expected else f"is {value!r}: {error['msg']}"
