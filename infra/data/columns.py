"""Decodes cells: Arrow arrays of any sensible type to ids, times, numbers, flags, categories, bags, vectors and texts.

Here: pure decoding. A cell that cannot be read counts as missing (None, NaN, -1), and the caller decides whether that rejects the row. CSV cells arrive
as text, Parquet cells with a type; both give the same values.
"""

import datetime as dt
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import RejectedInput
from schemas.ids import INT64_MAX, INT64_MIN, Id, IdKind, decode_id
from schemas.limits import BAG_VALUES_MAX, FEATURE_TEXT_BYTES_MAX, FLOAT32_END

Array: TypeAlias = pa.Array | pa.ChunkedArray
MISSING_TIME = -1
UNIT_MS = {"day": 86_400e3, "hour": 3_600e3, "min": 60e3, "s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_FLAGS = dict.fromkeys(("true", "t", "yes", "y"), True) | dict.fromkeys(("false", "f", "no", "n"), False)
DECIMAL_MARKS = (",", ".")
_FRACTION = re.compile(r"-?\d+\.0")
_SEPARATORS = re.compile(r"[\s,;|]+")


def plain(array: Array) -> pa.Array:
    """One array without dictionaries or chunks."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of an array without chunks stays chunked
        array = pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def is_text(array: Array) -> bool:
    """Whether cells are text."""
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_list(kind: pa.DataType) -> bool:
    """Whether cells of a type are lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def is_moment(array: Array) -> bool:
    """Whether cells are dates or times of Arrow's. A time of day or a duration says no moment."""
    return pa.types.is_timestamp(array.type) or pa.types.is_date(array.type)


def decode_texts(array: Array) -> list[str | None]:
    """Trimmed text of each cell; None where it is missing or empty."""
    array = plain(array)
    if is_text(array):
        return [text.strip() or None if text is not None else None for text in array.to_pylist()]
    return [_text(value) for value in array.to_pylist()]


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def distinct(array: Array) -> tuple[pa.Array, np.ndarray]:
    """(the different cells, a missing one among them; the place of each cell among these, [R]), so that equal cells are decoded once."""
    encoded = plain(array).dictionary_encode(null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy()


def decode_parts(array: Array, pattern: str) -> pa.Array:
    """The part of each cell's text that a regular expression matches (its first group, if it has one); missing if it does not match."""
    (cells, places), search = distinct(array), re.compile(pattern).search
    found = [search(text) if text is not None else None for text in decode_texts(cells)]
    parts = [match[min(1, match.re.groups)] if match is not None else None for match in found]
    return pa.array(parts, pa.string()).take(pa.array(places))


def spell_numbers(array: Array, decimal: str) -> pa.Array:
    """Numbers in text with `decimal` before their fraction, such as "1.234,50", as `decode_numbers` reads them: "1234.50". What groups their digits is dropped:
    the other of point and comma, blanks, and '."""
    array = plain(array)
    if not is_text(array):
        return array
    (group,) = (mark for mark in DECIMAL_MARKS if mark != decimal)
    return pc.replace_substring(pc.replace_substring_regex(array, rf"[{group}'’\s\x{{a0}}\x{{202f}}]", ""), decimal, ".")


def decode_numbers(array: Array) -> np.ndarray:
    """float64; NaN for a cell that is missing or not a finite number. A time is in milliseconds, a flag 0 or 1."""
    array = plain(array)
    if is_moment(array):
        times = decode_times(array)
        return np.where(times < 0, np.nan, times.astype(np.float64))
    if pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.int8())
    try:
        if is_text(array):
            array = pc.utf8_trim_whitespace(array)
        numbers = pc.cast(array, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        numbers = np.array([_number(value) for value in array.to_pylist()], np.float64)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def decode_membership(array: Array, values: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """(flags, known), both bool: whether each cell is one of the values, and whether it has a value."""
    cells, places = distinct(array)
    texts = decode_texts(cells)
    return np.array([text in values for text in texts], bool)[places], np.array([text is not None for text in texts], bool)[places]


def decode_flags(array: Array, at_least: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(flags, known), both bool. A number is true above 0, or from `at_least` on; without `at_least`, text may be a word like true or yes."""
    array = plain(array)
    numbers = decode_numbers(array)
    flags, known = numbers > 0 if at_least is None else numbers >= at_least, ~np.isnan(numbers)
    if at_least is None and is_text(array):
        words = [_FLAGS.get((text or "").strip().lower()) for text in array.to_pylist()]
        flags = flags | np.array([word is True for word in words], bool)
        known = known | np.array([word is not None for word in words], bool)
    return flags, known


def decode_times(array: Array, unit: str | None = None, forms: Sequence[str] = ()) -> np.ndarray:
    """Milliseconds since 1970, int64; -1 for a cell that is missing, not a time, or before 1970. Times without a zone are UTC.

    Numbers are seconds, milliseconds, microseconds or nanoseconds by their size (a second count reaches 10^11 in the year 5138).
    """
    array = plain(array)
    if is_moment(array):
        stamps = pc.cast(array, pa.timestamp("ms", getattr(array.type, "tz", None)), safe=False)
        times = pc.fill_null(pc.cast(stamps, pa.int64()), MISSING_TIME).to_numpy(zero_copy_only=False)
        return np.where(times < 0, MISSING_TIME, times)
    if forms:
        array = pa.array(decode_texts(array), pa.string())  # 20240301 in Parquet may be a number
    if not is_text(array):
        return _times_of_numbers(decode_numbers(array), unit)
    numbers = np.full(len(array), np.nan) if forms else decode_numbers(array)
    times = _times_of_numbers(numbers, unit)
    left = np.flatnonzero(np.isnan(numbers))
    if len(left):
        times[left] = [_time_of_text(text, forms) for text in array.take(pa.array(left)).to_pylist()]
    return times


def _times_of_numbers(numbers: np.ndarray, unit: str | None) -> np.ndarray:
    size = np.abs(np.nan_to_num(numbers))
    by_size = np.select([size < 1e11, size < 1e14, size < 1e17], [1e3, 1.0, 1e-3], 1e-6)
    scaled = numbers * (UNIT_MS[unit] if unit else by_size)
    usable = ~np.isnan(scaled) & (scaled >= 0) & (scaled < 2**62)
    return np.where(usable, np.where(usable, scaled, 0).astype(np.int64), MISSING_TIME)


def _time_of_text(text: str | None, forms: Sequence[str]) -> int:
    """ISO 8601 in its common spellings, also with " UTC" at its end, or the first of the strptime formats that fits."""
    text = (text or "").strip()
    text = text if forms else text.removesuffix(" UTC")
    for form in forms or (None,):
        try:
            moment = dt.datetime.strptime(text, form) if form else dt.datetime.fromisoformat(text)  # noqa: DTZ007 (UTC below)
        except ValueError:
            continue
        moment = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
        return max(MISSING_TIME, round(moment.timestamp() * 1_000))
    return MISSING_TIME


@dataclass
class IdForm:
    """The form that all cells of an id column share; collected over any number of cells."""

    whole_numbers: bool = True  # all in their normal spelling: "7", not "007"
    fractions: bool = True  # all like "7.0"

    def see(self, array: Array) -> None:
        """Adds more cells of the column."""
        self.whole_numbers = self.whole_numbers and fits_int64(array)
        if self.fractions:
            texts = decode_texts(plain(array).unique()) if not pa.types.is_integer(plain(array).type) else ["1"]
            self.fractions = all(text is None or _FRACTION.fullmatch(text) for text in texts)


def decode_ids(array: Array, kind: IdKind, fractions: bool) -> list[Id | None]:
    """Ids of the catalogue's kind; None for a cell that is missing or not an id of that kind.

    A table of floats writes the whole number 7 as "7.0". Among int64 ids that is always the id "7"; among text ids only if the whole column looks like that
    (`fractions`).
    """
    fractions = fractions or kind is IdKind.INT64
    return [_id(text.removesuffix(".0") if fractions and text is not None else text, kind) for text in decode_texts(array)]


def _id(text: str | None, kind: IdKind) -> Id | None:
    if text is None:
        return None
    try:
        return decode_id(text, kind)
    except RejectedInput:
        return None


def fits_int64(array: Array) -> bool:
    """Whether every cell with a value is a whole number in its normal spelling ("7", not "007"), and so an int64 id."""
    array = plain(pc.drop_null(array))
    if pa.types.is_integer(array.type):
        return not pa.types.is_uint64(array.type) or not len(array) or pc.max(array).as_py() < 2**63
    texts = (text.removesuffix(".0") for text in decode_texts(array.unique()) if text is not None)
    return all(re.fullmatch(r"0|-?[1-9]\d{0,18}", text) and -(2**63) <= int(text) < 2**63 for text in texts)


def decode_categories(array: Array, separator: str | None = None) -> list[int | str | None]:
    """Values of a categorical feature: whole numbers of 64 bits stay numbers, everything else is text of at most 1 KiB. Of several values in a cell, in a
    list, in JSON text or separated by `separator`, the first."""
    array = plain(array)
    if pa.types.is_integer(array.type):
        return array.to_pylist() if fits_int64(array) else [None if value is None else _whole(value) for value in array.to_pylist()]
    if is_list(array.type) or (separator is None and is_text(array) and pc.any(pc.starts_with(array, "[")).as_py()):
        return [_first_of(cell) for cell in array.to_pylist()]
    if separator is not None:
        array = pa.array([text.partition(separator)[0] if text else text for text in decode_texts(array)], pa.string())
    return [text if text is None or len(text) * 4 <= FEATURE_TEXT_BYTES_MAX else _short(text) for text in decode_texts(array)]


def _first_of(cell: Any) -> int | str | None:
    """The first value of a list or of JSON text that is one, or the cell itself."""
    listed = _json_list(cell) if isinstance(cell, str) else cell
    usable = (value for value in (listed if listed is not None else [cell]) if _text(value))
    first = next(usable, None)
    return None if first is None else _bag_value(first) or None


def _short(text: str) -> str:
    return text.encode()[:FEATURE_TEXT_BYTES_MAX].decode(errors="ignore")


def decode_bags(array: Array, separator: str | None = None) -> list[list[Any] | None]:
    """Values of a bag feature, at most 64 each: a list, JSON text, or text with a separator (detected per cell: | or ; or ,)."""
    bags = []
    for cell in plain(array).to_pylist():
        values = _bag_of_text(cell, separator) if isinstance(cell, str) else cell if isinstance(cell, list) else [cell]
        usable = [_bag_value(v) for v in values or () if _text(v) is not None]
        bags.append([v for v in usable if v != ""][:BAG_VALUES_MAX] or None)
    return bags


def _bag_value(value: Any) -> int | str:
    return _whole(value) if isinstance(value, int) and not isinstance(value, bool) else _short((_text(value) or "").strip())


def _whole(value: int) -> int | str:
    """A whole number as an event carries it. One outside int64, such as half of all unsigned hashes, becomes text: an event would make a fraction of it."""
    return value if INT64_MIN <= value <= INT64_MAX else str(value)


def _bag_of_text(text: str, separator: str | None) -> Sequence[Any]:
    if separator is None and (listed := _json_list(text)) is not None:
        return listed
    return text.split(separator or next((s for s in "|;," if s in text), "|"))


def _json_list(text: str) -> list[Any] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def decode_lists(array: Array, separator: str | None) -> pa.Array:
    """Cells as lists: lists, JSON text, or text between separators (None: blanks, commas, semicolons or bars)."""
    array = plain(array)
    if is_text(array):
        return pa.array([None if text is None else _values_of_text(text, separator) for text in array.to_pylist()], pa.list_(pa.string()))
    return array.cast(pa.list_(array.type.value_type))


def list_lengths(array: Array) -> np.ndarray:
    """How many values each list has, int64; none where it is missing."""
    return np.asarray(pc.fill_null(pc.list_value_length(array), 0).to_numpy(), np.int64)


def _values_of_text(text: str, separator: str | None) -> list[str | None]:
    if separator is None and (listed := _json_list(text)) is not None:
        return [_text(value) for value in listed]
    return [part for part in (text.split(separator) if separator else _SEPARATORS.split(text)) if part]


def decode_vectors(array: Array, separator: str | None = None) -> list[list[float] | None]:
    """Vectors from lists, JSON text, or text whose numbers are separated by spaces, commas, semicolons or bars. None if a number is not finite as
    float32."""
    return [_vector(cell, separator) for cell in plain(array).to_pylist()]


def _vector(cell: Any, separator: str | None) -> list[float] | None:
    if isinstance(cell, str):
        text = cell.strip().removeprefix("[").removesuffix("]").strip()
        cell = text.split(separator) if separator else _SEPARATORS.split(text)
    if not isinstance(cell, list) or not cell:
        return None
    numbers = [_number(value) for value in cell]
    return numbers if all(abs(x) < FLOAT32_END for x in numbers) else None  # NaN is not below it either


def join_vectors(arrays: Sequence[Array]) -> list[list[float] | None]:
    """Vectors from numeric columns, one per place; None for a row in which a place is missing."""
    numbers_RE = np.stack([decode_numbers(array) for array in arrays], axis=1)
    known = (np.abs(numbers_RE) < FLOAT32_END).all(axis=1)
    return [row if ok else None for row, ok in zip(numbers_RE.tolist(), known.tolist(), strict=True)]
