"""The version token, which both calls of a request carry so that they meet one version.

Text form `<v>.<r>-<first 8 hex of the manifest digest>`; later parts, if any, follow after another `-` and are kept, not interpreted.
The version alone pins model, LSH and user state. The revision says only where a server began to load, so tokens of one
version with different revisions are compatible.
"""

import re
from dataclasses import dataclass

from schemas.errors import RejectedInput

_TOKEN = re.compile(r"(0|[1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,9})-([0-9a-f]{8})((?:-[A-Za-z0-9_.]{1,32}){0,4})")


@dataclass(frozen=True, slots=True)
class VersionToken:
    """version = offset of its checkpoint record; revision = number of its manifest; digest8 = first 8 hex digits of the manifest's sha256."""

    version: int
    revision: int
    digest8: str
    rest: str = ""

    def __str__(self) -> str:
        return f"{self.version}.{self.revision}-{self.digest8}{self.rest}"

    def is_compatible(self, other: "VersionToken") -> bool:
        """Whether a state made under one token may be used under the other. A manifest is never written again, so one revision with two digests is of two
        indexes, whose versions have nothing in common but their numbers."""
        return self.version == other.version and (self.revision != other.revision or self.digest8 == other.digest8)


def decode_token(text: str) -> VersionToken:
    """Raises RejectedInput (`bad_version_token`)."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise RejectedInput(
            "bad_version_token", f"version token {text[:80]!r} is not of the form <v>.<r>-<8 hex>; send back the token of an earlier answer"
        )
    return VersionToken(int(match[1]), int(match[2]), match[3], match[4])
