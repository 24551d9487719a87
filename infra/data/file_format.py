"""How a CSV file is written, as a section of a mapping says it: what sets its cells apart, and which bytes its characters are.

Here: the two keys, checked. Not here: finding out what was left open (file_chunks.py).
"""

import codecs

from infra.data.mapping_section import Section


def read_delimiter(section: Section) -> str | None:
    """One character, or the word tab; None where it is found out. Raises Misconfigured."""
    given = section.any("delimiter")
    if given is not None and given != "tab" and not (isinstance(given, str) and len(given.encode()) == 1):
        raise section.reject("delimiter", f"is {given!r}, expected one character, or tab")
    return "\t" if given == "tab" else given


def read_encoding(section: Section) -> str:
    """A name that Python knows, utf-8 where none is given. Raises Misconfigured."""
    given = section.text("encoding", "utf-8")
    try:
        codecs.lookup(given)
    except LookupError as error:
        raise section.reject("encoding", f"is {given!r}, expected one like utf-8 or latin-1") from error
    return given
