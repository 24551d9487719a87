"""Bodies and answers of the server's HTTP routes (protocol C4 to C6). Strict and bounded; the answer says what it is made of.

    POST /v1/user     UserRequest    -> UserAnswer   call 1: the user half, kept under (user, version)
    POST /v1/rank     RankRequest    -> RankAnswer   call 2: candidates in, top-k out
    POST /v1/prerank  PrerankRequest -> RankAnswer   both calls in one
    any error                        -> ErrorAnswer

Ids beyond 2**53 travel as decimal strings, in and out.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from schemas.events import Name, RawFeatures, TimeMs, WireId
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


class AtLeast(_Body):
    """Wait until the answer's version has everything before `offset` of (topic, partition); topic without the prefix."""

    topic: Literal["item-features", "new-items"]
    partition: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0)]


class _Common(_Body):
    user_id: WireId
    request_id: RequestId | None = None
    version_token: Token | None = None
    consistency: Literal["latest", "pinned"] | AtLeast = "latest"
    deadline_ms: Annotated[int, Field(ge=1, le=DEADLINE_MS_MAX)] | None = None


class _Inline(_Body):
    """A request may carry the user's features and behaviours itself; then the server's own view of the user is not used."""

    features: RawFeatures | None = None
    behaviours: Annotated[list[InlineBehaviour], Field(max_length=BEHAVIOURS_PER_REQUEST_MAX)] | None = None


class UserRequest(_Common, _Inline):
    """Call 1. `carry_state`: the answer shall have the state itself, for a call 2 that may go to another server."""

    carry_state: bool = False


class _Candidates(_Body):
    item_ids: Annotated[list[WireId], Field(min_length=1, max_length=CANDIDATES_MAX)]
    top_k: Annotated[int, Field(ge=1, le=TOP_K_MAX)] = TOP_K_DEFAULT
    context: RawFeatures = {}


class RankRequest(_Common, _Candidates):
    """Call 2. `user_state`: as call 1's answer had it."""

    user_state: CarriedState | None = None


class PrerankRequest(_Common, _Candidates, _Inline):
    """Both calls in one."""


class Freshness(_Body):
    """How old the version's newest applied source record is, and what of the sources the answer holds, per shard.

    Each shard's watermark has three next offsets: `item-features` and `new-items` (everything before is in the rows) and
    `index-deltas`: the answer is recomputed from its version's files and exactly the delta records before that offset. Delta
    records are applied whole, never in part, so that this is exact.
    """

    age_s: float | None
    watermark: list[dict[str, int]]


class RankedItem(_Body):
    """`score` orders the answer (y * bid, or y); `probabilities` = one per task of the model, click first."""

    item_id: WireId
    score: float
    probabilities: list[float]


class UserAnswer(_Body):
    """Call 1's answer: send `version_token` and `request_id` back with call 2, and `user_state` where it was asked for (it is missing where it would be
    larger than call 2 takes: then leave it out)."""

    request_id: str
    version_token: str
    cold_user: bool
    behaviours: int
    behaviours_without_row: int
    state_bytes: int
    user_state: CarriedState | None = None
    took_ms: float


class RankAnswer(_Body):
    """min(top_k, known) items by score descending, then id ascending; and from what they were computed.

    rung      how the user half was had: "carried" (it came with call 2), "cached" (call 1), "waited" (for call 1), "inline" (computed here),
              "last_cached" (an older state), "profile_only", "item_prior" (nobody's)
    degraded  reasons why this answer is less than it could be: "unknown_items", "cold_user", "version_changed", and of the last three rungs
              "older_history", "profile_only", "item_prior"
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
