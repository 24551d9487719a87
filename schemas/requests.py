"""Bodies and answers of the server's HTTP routes (protocol C4 to C6). Strict and bounded; an answer says what it was computed from.

    POST /v1/user     UserRequest    -> UserAnswer   call 1: the user half, kept under (user, version)
    POST /v1/rank     RankRequest    -> RankAnswer   call 2: candidates in, top-k out
    POST /v1/prerank  PrerankRequest -> RankAnswer   both calls in one
    any error                        -> ErrorAnswer

Ids beyond 2**53 travel as decimal strings, in and out.
"""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from schemas.events import Expected, Name, RawFeatures, TimeMs, WireId
from schemas.ids import INT64_MAX
from schemas.limits import (
    BEHAVIOURS_PER_REQUEST_MAX,
    CANDIDATES_MAX,
    CARRIED_STATE_BYTES_MAX,
    DEADLINE_MS_MAX,
    REQUEST_ID_CHARS_MAX,
    TOP_K_MAX,
)

TOP_K_DEFAULT = 100
DEADLINE_MS_DEFAULT = 200
DEADLINE_HEADER = "x-aif-deadline-ms"
BEARER_TOKEN = re.compile("[!-~]+")  # what `Authorization: Bearer` can carry: no space, and not the end of a line that a file has after it

RequestId = Annotated[str, StringConstraints(min_length=1, max_length=REQUEST_ID_CHARS_MAX)]
Token = Annotated[str, StringConstraints(min_length=1, max_length=128)]
CarriedState = Annotated[str, StringConstraints(min_length=1, max_length=4 * -(-CARRIED_STATE_BYTES_MAX // 3))]  # Base64


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class InlineBehaviour(_Body):
    """A behaviour that travels in the request, oldest first."""

    item_id: WireId
    kind: Name = "click"
    time_ms: TimeMs = 0
    features: RawFeatures = {}


# Python lets another thread run between two of its calls, and not inside one of pydantic's: without this one a body of 20,000 behaviours, read in a thread,
# would keep all other threads waiting for 0.1 s.
_Passing = Annotated[InlineBehaviour, AfterValidator(lambda behaviour: behaviour)]


class AtLeast(_Body):
    """The answer must include every record of (topic, partition) before `offset`. `topic` is without the prefix."""

    topic: Literal["item-features", "new-items"]
    partition: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0, le=INT64_MAX)]


class _Common(_Body):
    user_id: WireId
    request_id: RequestId | None = None
    version_token: Token | None = None
    consistency: Annotated[
        Literal["latest", "pinned"] | AtLeast,
        Expected('"latest", "pinned" or {"topic": "item-features" or "new-items", "partition": from 0, "offset": 0 to 2^63 - 1}'),
    ] = "latest"
    deadline_ms: Annotated[int, Field(ge=1, le=DEADLINE_MS_MAX)] | None = None


class _Inline(_Body):
    """A request may carry the user's features and behaviours itself; then the server's own view of the user is not used."""

    features: RawFeatures | None = None
    behaviours: Annotated[list[_Passing], Field(max_length=BEHAVIOURS_PER_REQUEST_MAX, fail_fast=True)] | None = None


class UserRequest(_Common, _Inline):
    """Call 1. `carry_state`: the answer is to contain the state itself, for a call 2 that may go to another server. A consistency of "at least" is about the
    rows of candidates: call 2 waits for it, call 1 does not."""

    carry_state: bool = False


class _Candidates(_Body):
    item_ids: Annotated[list[WireId], Field(min_length=1, max_length=CANDIDATES_MAX, fail_fast=True)]
    top_k: Annotated[int, Field(ge=1, le=TOP_K_MAX)] = TOP_K_DEFAULT
    context: RawFeatures = {}


class RankRequest(_Common, _Candidates):
    """Call 2. `user_state`: from call 1's answer, unchanged."""

    user_state: CarriedState | None = None


class PrerankRequest(_Common, _Candidates, _Inline):
    """Both calls in one."""


class Freshness(_Body):
    """How old the rows of the answer are, and per shard which source records they include.

    `age_s`: seconds since the rows of the oldest shard were at the ends of their topics; null while that is unknown. `lagging_shards` are older than 2 s.
    Each shard's watermark has three next offsets: of `item-features` and `new-items` (all records before are in the rows), and of `index-deltas`: the answer
    can be recomputed from its version's files and exactly the delta records before that offset, because delta records are always applied as a whole.
    """

    age_s: float | None
    lagging_shards: list[int] = Field(default_factory=list)
    watermark: list[dict[str, int]]


class RankedItem(_Body):
    """`score` orders the answer (y * bid, or y); `probabilities` = one per task of the model, click first."""

    item_id: WireId
    score: float
    probabilities: list[float]


class UserAnswer(_Body):
    """Call 1's answer. Send `version_token` and `request_id` with call 2, and `user_state` if it was asked for (it is missing if it would be larger than
    call 2 accepts; then send none)."""

    request_id: str
    version_token: str
    cold_user: bool
    behaviours: int
    behaviours_without_row: int
    state_bytes: int
    user_state: CarriedState | None = None
    took_ms: float


class RankAnswer(_Body):
    """min(top_k, known) items by score descending, then id ascending; and what they were computed from.

    rung      where the user half came from: "carried" (came with call 2), "cached" (from call 1), "waited" (for call 1), "inline" (computed in call 2),
              "last_cached" (an older state), "profile_only", "item_prior" (the empty user's)
    degraded  why this answer is worse than it could be: "unknown_items", "unsigned_items" (candidates without an embedding that this version can read, as
              those of another width before a switch: no similarity to the history), "cold_user", "version_changed"; for the last three rungs
              "older_history", "profile_only", "item_prior"; and "broker_silent" (longer than the server's limit), "rows_behind", "users_behind" (the server
              started without the broker, or its changes stopped)
    """

    request_id: str
    version_token: str
    rung: str
    degraded: list[str]
    items: list[RankedItem]
    candidates: int
    unknown_count: int
    unknown_items: list[WireId]
    freshness: Freshness
    took_ms: float


class ErrorAnswer(_Body):
    """`code` is stable; `message` says what happened, the value, the expectation, the next step."""

    code: str
    message: str
    retry_after_s: float | None = None
