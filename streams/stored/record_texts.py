"""One record of item-features in the form that publishers write, read in one compiled pass: ids, versions, and features as canonical JSON.

Here: `read_record`, a part of the kernel in plain_records.py. Not here: many records at once (plain_records.py), the rules of a record
(schemas/events.py), which are the specification, and which judge every record that is not plain.
A record is plain if its fields stand in their declared order, its ids and versions have at most 18 digits, and its texts are printable ASCII without escapes.
The features of an update are plain if each number is written as it is printed again: at most 15 digits, no needless zero, no exponent. A double keeps
15 digits, so such a number is the shortest text of its double.
Invariant: what is accepted here is accepted by the strict models, too, with the same ids, versions and canonical bytes. Of a record that is not plain no update
is told; an update whose features are not plain is told as UPSERT_BY_PYTHON.

Arrays: T bytes of a record, U updates of it, E entries of one update's features. An entry is four places: where its name begins and ends, and where its
value begins and ends.
"""

import numpy as np

from infra.joined import copy_into, is_same
from schemas.limits import (
    BAG_VALUES_MAX,
    EMBEDDING_WIDTH_MAX,
    FEATURE_TEXT_BYTES_MAX,
    NAME_CHARS_MAX,
    TEXT_ID_BYTES_MAX,
)
from schemas.model.compiled import int64, part
from streams.stored.text_words import end_of_name, order_of

_QUOTE, _ESCAPE, _COMMA, _OPEN, _CLOSE, _LIST, _LIST_END = (ord(c) for c in '"\\,{}[]')
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _SPACE, _E, _SMALL_E, _DELETE = (ord(c) for c in "-+.09 Ee\x7f")
_HEAD, _UPSERT, _REMOVE, _ID, _VERSION, _FEATURES = (
    np.frombuffer(text, np.uint8)
    for text in (b'{"schema":1,"updates":[', b'{"op":"upsert",', b'{"op":"delete",', b'"item_id":', b',"version":', b',"features":{')
)
_TRUE, _FALSE, _NULL = (np.frombuffer(text, np.uint8) for text in (b"true", b"false", b"null"))
UPDATE_BYTES_MIN = len(b'{"op":"upsert","item_id":1,"version":1,"features":{}}')  # of a plain one
_LIST_MAX = max(BAG_VALUES_MAX, EMBEDDING_WIDTH_MAX)
_WHOLE_DIGITS_MAX, _DIGITS_MAX, _ZEROS_AFTER_POINT_MAX = 18, 15, 3
_BAD = -1
# What is known of an update, by column. ID_BEGIN to ID_END, and BEGIN to END of the update: places in the record. RAW_BEGIN to RAW_END: in the buffer of
# canonical features. ITEM: an int64 id.
OP, ITEM, ID_BEGIN, ID_END, VERSION, RAW_BEGIN, RAW_END, BEGIN, END = range(9)
COLUMNS = 9
UPSERT, REMOVE, UPSERT_BY_PYTHON = 1, 2, 3


@part
def _begins(text: np.ndarray, at: int, expected: np.ndarray) -> bool:
    size = expected.shape[0]
    return at + size <= text.shape[0] and is_same(text, at, at + size, expected, 0, size)


@part
def _whole(text: np.ndarray, at: int) -> tuple[int, int]:
    """(place after it, value) of a whole number as it is printed; the place is -1 for any other."""
    negative = text[at] == _MINUS
    at += 1 if negative else 0
    begin, value = at, 0
    while at < text.shape[0] and _ZERO <= text[at] <= _NINE and at - begin <= _WHOLE_DIGITS_MAX:
        value = value * 10 + int64(text[at] - _ZERO)
        at += 1
    digits = at - begin
    if digits == 0 or digits > _WHOLE_DIGITS_MAX or (text[begin] == _ZERO and (digits > 1 or negative)):
        return _BAD, 0
    return at, -value if negative else value


@part
def _pass_number(text: np.ndarray, at: int) -> tuple[int, bool]:
    """(place after a number, whether it is as it is printed again); the place is -1 for what is none."""
    negative = text[at] == _MINUS
    at += 1 if negative else 0
    begin, end = at, text.shape[0]
    while at < end and _ZERO <= text[at] <= _NINE:
        at += 1
    whole = at - begin
    if whole == 0 or at >= end or (text[begin] == _ZERO and whole > 1):
        return _BAD, False
    if text[at] == _POINT:
        point = at
        at += 1
        while at < end and _ZERO <= text[at] <= _NINE:
            at += 1
        after = at - point - 1
        if after == 0 or at >= end:
            return _BAD, False
        zeros = 0
        while zeros < after and text[point + 1 + zeros] == _ZERO:
            zeros += 1
        if text[begin] != _ZERO:
            plain = (after == 1 or text[at - 1] != _ZERO) and whole + after <= _DIGITS_MAX
        elif zeros == after:
            plain = after == 1
        else:
            plain = text[at - 1] != _ZERO and zeros <= _ZEROS_AFTER_POINT_MAX and after - zeros <= _DIGITS_MAX
    else:
        plain = whole <= _WHOLE_DIGITS_MAX and not (negative and text[begin] == _ZERO)
    if text[at] == _E or text[at] == _SMALL_E:
        plain = False
        while at < end and (
            text[at] == _E or text[at] == _SMALL_E or text[at] == _PLUS or text[at] == _MINUS or _ZERO <= text[at] <= _NINE
        ):
            at += 1
    return at, plain


@part
def _pass_text(text: np.ndarray, at: int, bytes_max: int) -> tuple[int, bool]:
    """(place after the closing quote, whether it is short printable ASCII without escapes) of a text that begins after its quote."""
    begin, end, plain = at, text.shape[0], True
    while at < end and text[at] != _QUOTE:
        byte = text[at]
        if byte == _ESCAPE:
            plain = False
            at += 1
        elif byte < _SPACE or byte >= _DELETE:
            plain = False
        at += 1
    if at >= end:
        return _BAD, False
    return at + 1, plain and at - begin <= bytes_max


@part
def _pass_scalar(text: np.ndarray, at: int) -> tuple[int, bool]:
    if text[at] == _QUOTE:
        return _pass_text(text, at + 1, FEATURE_TEXT_BYTES_MAX)
    return _pass_number(text, at)  # which begins with a digit or a minus, or is none


@part
def _pass_value(text: np.ndarray, at: int) -> tuple[int, bool]:
    """(place after a value, whether it is plain); the place is -1 for what no feature holds."""
    if _begins(text, at, _TRUE) or _begins(text, at, _NULL):
        return at + 4, True
    if _begins(text, at, _FALSE):
        return at + 5, True
    if text[at] != _LIST:
        return _pass_scalar(text, at)
    at, end, count, plain = at + 1, text.shape[0], 0, True
    if at < end and text[at] == _LIST_END:
        return at + 1, True
    while at < end:
        at, good = _pass_scalar(text, at)
        plain, count = plain and good, count + 1
        if at < 0 or at >= end:
            return _BAD, False
        if text[at] == _LIST_END:
            return at + 1, plain and count <= _LIST_MAX
        if text[at] != _COMMA or at + 1 >= end:
            return _BAD, False
        at += 1
    return _BAD, False


@part
def _is_name(text: np.ndarray, begin: int, end: int) -> bool:
    if end == begin or end - begin > NAME_CHARS_MAX or _ZERO <= text[begin] <= _NINE:
        return False
    return end_of_name(text, begin, end) == end


@part
def _sort_names(text: np.ndarray, entries: np.ndarray, count: int, places: np.ndarray) -> bool:
    """Puts the places of ascending names into `places`, beginning with those of the update before (places[-1] of them); False: a name twice."""
    if places[-1] != count:
        for e in range(count):
            places[e] = e
        places[-1] = count
    for e in range(1, count):
        here, back = places[e], e
        while back > 0:
            before = places[back - 1]
            order = order_of(text, entries[before, 0], entries[before, 1], text, entries[here, 0], entries[here, 1])
            if order == 0:
                return False
            if order < 0:
                break
            places[back] = places[back - 1]
            back -= 1
        places[back] = here
    return True


@part
def _write_features(text: np.ndarray, entries: np.ndarray, count: int, places: np.ndarray, raw: np.ndarray, size: int) -> int:
    """The canonical text of sorted entries into `raw` from `size` on; where it ends. Each entry is written from its quote to its value's end."""
    raw[size] = _OPEN
    size, e = size + 1, 0
    while e < count:
        if e > 0:
            raw[size] = _COMMA
            size += 1
        first = e
        while e + 1 < count and places[e + 1] == places[e] + 1:  # neighbours go together, with their commas
            e += 1
        size = copy_into(text, entries[places[first], 0] - 1, entries[places[e], 3], raw, size)
        e += 1
    raw[size] = _CLOSE
    return size + 1


@part
def _read_name(text: np.ndarray, at: int, entry: np.ndarray, is_known: bool) -> tuple[int, bool]:
    """(place of the value after a name and its colon, whether the name is that of `entry`, which is_known says to be one of this text). Fills in the name."""
    if is_known:
        size = entry[2] - entry[0] + 1
        if at + size < text.shape[0] and is_same(text, at, at + size, text, entry[0] - 1, entry[2]):
            entry[0], entry[1], entry[2] = at + 1, at + size - 2, at + size
            return at + size, True
    if text[at] != _QUOTE:
        return _BAD, False
    name = at + 1
    at, good = _pass_text(text, name, NAME_CHARS_MAX)
    if at < 0 or not good or not _is_name(text, name, at - 1) or at + 1 >= text.shape[0] or text[at] != ord(":"):
        return _BAD, False
    entry[0], entry[1], entry[2] = name, at - 1, at + 1
    return at + 1, False


@part
def _read_features(text: np.ndarray, at: int, entries: np.ndarray, known: int) -> tuple[int, int, bool, bool]:
    """(place after the closing bracket, entries, whether all are plain, whether they have the names of the `known` entries of the update before, in that
    order) of features that begin after their bracket."""
    end, count, plain, alike = text.shape[0], 0, True, True
    if at < end and text[at] == _CLOSE:
        return at + 1, 0, True, known == 0
    while at + 1 < end:
        if count == entries.shape[0]:
            return _BAD, 0, False, False
        at, is_same_name = _read_name(text, at, entries[count], count < known)
        if at < 0:
            return _BAD, 0, False, False
        at, good = _pass_value(text, at)
        if at < 0 or at >= end:
            return _BAD, 0, False, False
        entries[count, 3] = at
        plain, alike, count = plain and good, alike and is_same_name, count + 1
        if text[at] == _CLOSE:
            return at + 1, count, plain, alike and count == known
        if text[at] != _COMMA:
            return _BAD, 0, False, False
        at += 1
    return _BAD, 0, False, False


@part
def _murmur2(text: np.ndarray, begin: int, end: int) -> int:
    """schemas/ids.py `murmur2`."""
    length, m, mask = end - begin, np.uint64(0x5BD1E995), np.uint64(0xFFFFFFFF)
    h = (np.uint64(0x9747B28C) ^ np.uint64(length)) & mask
    at = begin
    while end - at >= 4:
        k = np.uint64(text[at]) | np.uint64(text[at + 1]) << np.uint64(8) | np.uint64(text[at + 2]) << np.uint64(16)
        k = ((k | np.uint64(text[at + 3]) << np.uint64(24)) * m) & mask
        k ^= k >> np.uint64(24)
        h = ((h * m) & mask) ^ ((k * m) & mask)
        at += 4
    if at < end:
        for i in range(end - at):
            h ^= np.uint64(text[at + i]) << np.uint64(8 * i)
        h = (h * m) & mask
    h ^= h >> np.uint64(13)
    h = (h * m) & mask
    return int64((h ^ (h >> np.uint64(15))) & np.uint64(0x7FFFFFFF))


@part
def _read_id(text: np.ndarray, at: int, is_text: bool, field: np.ndarray) -> int:
    """The place after an id of the catalogue's kind; a whole number may stand in quotes."""
    quoted = text[at] == _QUOTE
    begin = at + 1 if quoted else at
    if begin >= text.shape[0] or (is_text and not quoted):
        return _BAD
    if is_text:
        at, plain = _pass_text(text, begin, TEXT_ID_BYTES_MAX)
        if at <= begin + 1 or not plain:
            return _BAD
        field[ID_END] = at - 1
    else:
        at, field[ITEM] = _whole(text, begin)
        if at < 0 or (quoted and (at >= text.shape[0] or text[at] != _QUOTE)):
            return _BAD
        field[ID_END] = at
        at += 1 if quoted else 0
    field[ID_BEGIN] = begin
    return at


@part
def _read_head(text: np.ndarray, at: int, is_text: bool, field: np.ndarray) -> int:
    """Operation, id and version of an update; the place where its features begin."""
    if _begins(text, at, _UPSERT):
        field[OP] = UPSERT
    elif _begins(text, at, _REMOVE):
        field[OP] = REMOVE
    else:
        return _BAD
    at += _UPSERT.shape[0]
    if not _begins(text, at, _ID) or at + _ID.shape[0] >= text.shape[0]:
        return _BAD
    at = _read_id(text, at + _ID.shape[0], is_text, field)
    if at < 0 or not _begins(text, at, _VERSION) or at + _VERSION.shape[0] >= text.shape[0]:
        return _BAD
    at, field[VERSION] = _whole(text, at + _VERSION.shape[0])
    if at < 0 or field[VERSION] < 0 or not _begins(text, at, _FEATURES):
        return _BAD
    return at + _FEATURES.shape[0]


@part
def read_record(
    text: np.ndarray,
    is_text: bool,
    partition: int,
    partitions: int,
    fields: np.ndarray,
    raw: np.ndarray,
    size: int,
    entries: np.ndarray,
    places: np.ndarray,
) -> tuple[int, int]:
    """(number of updates, where their canonical features end in `raw`). A record without updates is not plain.

    text      the record; ids are text (`is_text`) or int64, and all of them belong to `partition` of `partitions`
    fields    int64 [U, COLUMNS], filled; a record with more updates is not plain
    raw       uint8, filled from `size` on with the canonical features of the plain upserts, side by side
    entries   int64 [E, 4], to work in; places: int64 [E + 1], the order of the names, whose last element says of how many
    """
    end, at, known = text.shape[0], _HEAD.shape[0], 0  # entries of the update before, whose names are in order in `places`
    if not _begins(text, 0, _HEAD):
        return 0, 0
    for update in range(fields.shape[0]):
        field = fields[update]
        field[BEGIN] = at
        at = _read_head(text, at, is_text, field)
        if at < 0 or _murmur2(text, field[ID_BEGIN], field[ID_END]) % partitions != partition:
            return 0, 0
        at, count, plain, alike = _read_features(text, at, entries, known)
        if at < 0 or at + 1 >= end or text[at] != _CLOSE:
            return 0, 0
        at += 1
        field[END], field[RAW_BEGIN] = at, size
        if field[OP] == UPSERT and plain and (alike or _sort_names(text, entries, count, places)):
            size, known = _write_features(text, entries, count, places, raw, size), count
        elif field[OP] == UPSERT:
            field[OP], known = UPSERT_BY_PYTHON, 0
        elif not plain:
            return 0, 0
        else:
            known = 0
        field[RAW_END] = size
        if text[at] == _LIST_END:
            return (update + 1, size) if at + 2 == end and text[at + 1] == _CLOSE else (0, 0)
        if text[at] != _COMMA:
            return 0, 0
        at += 1
    return 0, 0
