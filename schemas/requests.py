"""Bodies and answers of the server's HTTP routes (protocol C4 to C6). Strict and bounded. An answer names its version and its source records.

    POST /v1/user     UserRequest    -> UserAnswer   call 1: the user half, kept under (user, version)
    POST /v1/rank     RankRequest    -> RankAnswer   call 2: candidates in, top-k out
    POST /v1/prerank  PrerankRequest -> RankAnswer   both calls in one
    POST /v1/prefix   PrefixRequest  -> PrefixAnswer the signal: a ranking of this user will come
    POST /v1/rank_final  FinalRequest -> RankAnswer  AIF's answer, ordered by the ranker
    any error                        -> ErrorAnswer

Ids beyond 2**53 travel as decimal strings, in and out.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from schemas.events import Expected, Name, RawFeatures, TimeMs, WireId
from schemas.ids import INT64_MAX
from schemas.limits import (
    BEHAVIOURS_PER_REQUEST_MAX,
    CANDIDATES_MAX,
    CARRIED_STATE_BYTES_MAX,
    DEADLINE_MS_MAX,
    FINAL_CANDIDATES_MAX,
    REQUEST_ID_CHARS_MAX,
    TASKS_MAX,
    TOP_K_MAX,
    UNKNOWN_ITEMS_NAMED_MAX,
)

TOP_K_DEFAULT = 100
FINAL_TOP_K_DEFAULT = 50
DEADLINE_MS_DEFAULT = 200
DEADLINE_HEADER = "x-aif-deadline-ms"
BEARER_TOKEN = re.compile("[!-~]+")  # what `Authorization: Bearer` can carry: no space, and not the end of a line that a file has after it

RequestId = Annotated[str, StringConstraints(min_length=1, max_length=REQUEST_ID_CHARS_MAX)]
Token = Annotated[str, StringConstraints(min_length=1, max_length=128)]
CarriedState = Annotated[str, StringConstraints(min_length=1, max_length=4 * -(-CARRIED_STATE_BYTES_MAX // 3))]  # Base64


class _Body(BaseModel):
    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        validate_by_name=True,
        validate_by_alias=True,
    )


class InlineBehaviour(_Body):
    """A behaviour that travels in the request, oldest first."""

    item_id: Annotated[WireId, Field(description="The item that the user acted on.")]
    kind: Annotated[Name, Field(description="The kind of behaviour, as the model was trained with it.")] = "click"
    time_ms: Annotated[TimeMs, Field(description="When it happened: milliseconds since 1970-01-01 UTC.")] = 0
    features: Annotated[RawFeatures, Field(description="Features of the behaviour, by name.")] = {}


# Python lets another thread run between two of its calls, and not inside one of pydantic's: without this one a body of 20,000 behaviours, read in a thread,
# would keep all other threads waiting for 0.1 s.
_Passing = Annotated[InlineBehaviour, AfterValidator(lambda behaviour: behaviour)]


class AtLeast(_Body):
    """The answer must include every record of (topic, partition) before `offset`. `topic` is without the prefix."""

    topic: Annotated[Literal["item-features", "new-items"], Field(description="The topic, without the prefix.")]
    partition: Annotated[int, Field(ge=0, description="The partition of the topic.")]
    offset: Annotated[int, Field(ge=0, le=INT64_MAX, description="The first offset that the answer need not include.")]


class _Common(_Body):
    user_id: Annotated[WireId, Field(description="The user. Integers beyond 2^53 travel as decimal text.")]
    request_id: Annotated[
        RequestId | None, Field(description="Names the request in logs and joins call 2 with call 1. Default: a new one.")
    ] = None
    version_token: Annotated[Token | None, Field(description="The version to answer from, as an earlier answer named it.")] = None
    consistency: Annotated[
        Literal["latest", "pinned"] | AtLeast,
        Field(
            description="latest: any live version. pinned: only version_token's, else 409. An object: wait until these records are included."
        ),
        Expected('"latest", "pinned" or {"topic": "item-features" or "new-items", "partition": from 0, "offset": 0 to 2^63 - 1}'),
    ] = "latest"
    deadline_ms: Annotated[
        Annotated[int, Field(ge=1, le=DEADLINE_MS_MAX)] | None,
        Field(
            description="Milliseconds for the answer, from the arrival of the request. Default: the header x-aif-deadline-ms, else the server's."
        ),
    ] = None


class _Inline(_Body):
    """A request may carry the user's features and behaviours itself; then the server's own view of the user is not used."""

    features: Annotated[
        RawFeatures | None, Field(description="The user's features. With them the server's own view of the user is not used.")
    ] = None
    behaviours: Annotated[
        Annotated[list[_Passing], Field(max_length=BEHAVIOURS_PER_REQUEST_MAX, fail_fast=True)] | None,
        Field(description="The user's behaviours, oldest first. With them the server's own view of the user is not used."),
    ] = None


class UserRequest(_Common, _Inline):
    """Call 1. `carry_state`: the answer is to contain the state itself, for a call 2 that may go to another server. A consistency of "at least" is about the
    rows of candidates: call 2 waits for it, call 1 does not."""

    carry_state: Annotated[bool, Field(description="Whether the answer contains the state, for a call 2 to any server.")] = False


class FinalChoice(_Body):
    """The ranker orders AIF's `top_k` items, at most FINAL_CANDIDATES_MAX, and this many of them are the answer."""

    top_k: Annotated[int, Field(ge=1, le=FINAL_CANDIDATES_MAX, description="How many items the final answer has at most.")] = (
        FINAL_TOP_K_DEFAULT
    )


class _Candidates(_Body):
    item_ids: Annotated[
        list[WireId],
        Field(min_length=1, max_length=CANDIDATES_MAX, fail_fast=True, description="The candidates. A repeated id counts once."),
    ]
    top_k: Annotated[int, Field(ge=1, le=TOP_K_MAX, description="How many items the answer has at most.")] = TOP_K_DEFAULT
    context: Annotated[RawFeatures, Field(description="Features of the request, by name.")] = {}
    final: Annotated[
        FinalChoice | None,
        Field(description="The ranker orders AIF's top_k items, and these are the answer. Default: AIF's order is the answer."),
    ] = None

    retrieval_scores: Annotated[
        Annotated[list[float], Field(max_length=CANDIDATES_MAX)] | None,
        Field(description="Retrieval's score of each candidate. Under load the best by it are ranked; without it, the first of item_ids."),
    ] = None
    user_value: Annotated[
        Annotated[float, Field(gt=0)] | None,
        Field(description="What the caller knows of the user's value, relative to 1 for the mean user."),
    ] = None
    request_class: Annotated[
        Name | None, Field(description="The tenant or surface, by which the server shares its time. Default: the class `default`.")
    ] = None

    @model_validator(mode="after")
    def _check_final(self) -> Self:
        if self.final is not None and self.top_k > FINAL_CANDIDATES_MAX:
            raise ValueError(f"top_k is {self.top_k}, expected at most {FINAL_CANDIDATES_MAX} with final: that many the ranker orders")
        return self


class RankRequest(_Common, _Candidates):
    """Call 2. `user_state`: from call 1's answer, unchanged."""

    user_state: Annotated[CarriedState | None, Field(description="The state from call 1's answer, unchanged.")] = None


class PrerankRequest(_Common, _Candidates, _Inline):
    """Both calls in one."""


class FinalRequest(_Common):
    """The second stage alone: these items as AIF ranks them, ordered by the ranker. The same as a RankRequest with `final` and their number as top_k."""

    item_ids: Annotated[
        list[WireId], Field(min_length=1, max_length=FINAL_CANDIDATES_MAX, fail_fast=True, description="The candidates of the ranker.")
    ]
    top_k: Annotated[int, Field(ge=1, le=FINAL_CANDIDATES_MAX, description="How many items the answer has at most.")] = FINAL_TOP_K_DEFAULT
    context: Annotated[RawFeatures, Field(description="Features of the request, by name.")] = {}
    user_state: Annotated[CarriedState | None, Field(description="The state from call 1's answer, unchanged.")] = None

    def as_rank_request(self) -> RankRequest:
        """AIF ranks all of them, and the ranker orders them."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in ("top_k", "final")}
        return RankRequest.model_construct(**fields, top_k=len(self.item_ids), final=FinalChoice(top_k=self.top_k))


class PrefixRequest(_Common):
    """The signal: sent with call 1, to the server that will rank. The ranking must carry the same request_id."""

    candidates: Annotated[
        Annotated[int, Field(ge=1, le=FINAL_CANDIDATES_MAX)] | None,
        Field(description="How many candidates the ranker will order. Default: the server's setting."),
    ] = None


class PrefixAnswer(_Body):
    """What became of a signal. decision: admitted, extended (a kept prefix, by newer behaviours), resident, running, not_at_risk, no_room, no_load, no_ranker,
    no_history. None of them is an error: the ranking does without, if need be."""

    request_id: Annotated[str, Field(description="The request's, or a new one. Send it with the ranking.")]
    version_token: Annotated[str, Field(description="The version that the prefix belongs to.")]
    decision: Annotated[str, Field(description="What becomes of the prefix.")]
    took_ms: Annotated[float, Field(description="Milliseconds from the arrival of the request.")]


class FinalReport(_Body):
    """What the final order was computed from. rung: resident, waited, extended, reloaded, inline, older_prefix, truncated, aif_order."""

    rung: Annotated[str, Field(description="Where the keys and values of the history came from.")]
    history_start: Annotated[int, Field(description="The place in the history of the first behaviour that was read.")]
    history_read: Annotated[int, Field(description="The behaviours that were read.")]
    history_kept: Annotated[int, Field(description="Those of them that were computed before the ranking.")]
    behaviours_offset: Annotated[int, Field(description="The newest record of the behaviour log among them; -1: none.")]


class Freshness(_Body):
    """How old the rows of the answer are, and per shard which source records they include.

    `age_s`: seconds since the rows of the oldest shard were at the ends of their topics; null while that is unknown. `lagging_shards` are older than 2 s.
    Each shard's watermark has three next offsets. All records of `item-features` and `new-items` before the first two are in the rows. The third is of
    `index-deltas`: the answer can be recomputed from its version's files and exactly the delta records before it, because these are applied as a whole.
    """

    age_s: Annotated[
        float | None, Field(description="Seconds since the rows of the oldest shard were at the ends of their topics; null: unknown.")
    ]
    lagging_shards: Annotated[list[int], Field(default_factory=list, description="Shards whose rows are older than 2 s.")]
    watermark: Annotated[list[dict[str, int]], Field(description="Per shard, the next offset of each topic that the answer includes.")]


class RankedItem(_Body):
    """`score` orders the answer (y * bid, or y); `probabilities` = one per task of the model, click first."""

    item_id: Annotated[WireId, Field(description="The item.")]
    score: Annotated[float, Field(description="What orders the answer, highest first.")]
    probabilities: Annotated[list[float], Field(max_length=TASKS_MAX, description="One per task of the model, click first.")]


class Receipt(_Body):
    """How much work the server chose for a request, and why (docs/how-to/allocate-computation.md).

    lambda      the price of a millisecond of the engine; null: infinite, at a full queue. 0: no pressure, and full work
    arm         policy, or the random slice that chose instead: probe, random, undropped; propensity: the chance of this action
    """

    mode: Annotated[str, Field(description="off, shadow, queue or value.")]
    action: Annotated[str, Field(description="drop, cached, or level/candidates: full/2000, twopass/2000.")]
    candidates: Annotated[int, Field(description="How many entries of item_ids were ranked; 0: none.")]
    passes: Annotated[int, Field(description="2: all were ranked without the long history, and the best tenth of them again in full.")] = 1
    price: Annotated[float | None, Field(alias="lambda", description="The price of a millisecond of the engine; null: infinite.")]
    lambda_source: Annotated[str, Field(description="The control that set the price: none, plan, queue, floor.")]
    value: Annotated[float, Field(description="The predicted value of the action.")]
    cost_ms: Annotated[float, Field(description="The predicted cost of the action: milliseconds of the engine.")]
    runner_up: Annotated[str, Field(description="The second best action; empty: there was no other.")]
    reason: Annotated[str, Field(description="Why this action was chosen.")]
    table: Annotated[str, Field(description="The table of values and costs: its name, and `mean` if its mean row decided.")]
    arm: Annotated[str, Field(description="Who chose: policy, probe, random, undropped.")]
    propensity: Annotated[float, Field(description="The chance with which the request got this action.")]
    retry_after_s: Annotated[float | None, Field(description="Of a refusal: seconds after which a retry makes sense.")] = None


class AllocationRequest(_Body):
    """Switches what the allocator of this server may do, until its end."""

    mode: Annotated[Literal["off", "shadow", "queue", "value"], Field(description="off, shadow, queue or value.")]


class UserAnswer(_Body):
    """Call 1's answer. Send `user_id`, `version_token` and `request_id` with call 2, and `user_state` if the request asked for it. A state that is larger
    than call 2 accepts is missing; then send none."""

    request_id: Annotated[str, Field(description="The request's, or a new one. Send it with call 2.")]
    version_token: Annotated[str, Field(description="The version that the state belongs to. Send it with call 2.")]
    cold_user: Annotated[bool, Field(description="Whether the user has neither features nor behaviours.")]
    behaviours: Annotated[int, Field(description="The behaviours that the state contains.")]
    behaviours_without_row: Annotated[int, Field(description="Those of them whose item has no row in this version.")]
    state_bytes: Annotated[int, Field(description="The size of the state in the server's memory, in bytes.")]
    user_state: Annotated[CarriedState | None, Field(description="The state, if it was asked for and is not too large.")] = None
    candidates_max: Annotated[
        int | None, Field(description="Candidates that call 2 would rank at the present load; more need not be sent. null: all.")
    ] = None
    took_ms: Annotated[float, Field(description="Milliseconds from the arrival of the request.")]


class RankAnswer(_Body):
    """min(top_k, known) items by score descending, then id ascending, with their version and source records.

    rung      where the user half came from: "carried" (came with call 2), "cached" (from call 1), "waited" (for call 1), "inline" (computed in call 2),
              "last_cached" (an older state), "profile_only", "item_prior" (the empty user's)
    degraded  why this answer is worse than it could be: "unknown_items", "unsigned_items" (candidates without an embedding that this version can read, as
              those of another width before a switch: no similarity to the history), "cold_user", "version_changed"; for the last three rungs
              "older_history", "profile_only", "item_prior"; "broker_silent" (longer than the server's limit), "rows_behind", "users_behind" (the server
              started without the broker, its changes stopped, or it still reads the topics of users), "statistics_behind" (no process keeps some
              statistics current); by allocation "fewer_candidates", "two_passes" and "cached_answer"; and of the final order "final_truncated" and
              "final_aif_order"
    """

    request_id: Annotated[str, Field(description="The request's, or a new one.")]
    version_token: Annotated[str, Field(description="The one version that the whole answer was computed from.")]
    rung: Annotated[str, Field(description="Where the user half came from.")]
    degraded: Annotated[list[str], Field(description="Why the answer is worse than it could be; empty if it is not.")]
    action: Annotated[
        str,
        Field(
            description="The work that the server chose: full/2000 ranks 2,000 candidates with the whole model, twopass/2000 in two passes."
        ),
    ] = ""
    price: Annotated[float | None, Field(alias="lambda", description="The price of a millisecond of the engine; null: infinite.")] = 0.0
    table: Annotated[str, Field(description="The table of values and costs that decided; empty: none was needed.")] = ""
    receipt: Annotated[Receipt | None, Field(description="The decision in full.")] = None
    items: Annotated[
        list[RankedItem], Field(max_length=TOP_K_MAX, description="The best candidates, by score descending, then id ascending.")
    ]
    candidates: Annotated[int, Field(description="The distinct candidates that were ranked; under load fewer than were sent.")]
    unknown_count: Annotated[int, Field(description="Candidates that the version does not have.")]
    unknown_items: Annotated[list[WireId], Field(max_length=UNKNOWN_ITEMS_NAMED_MAX, description="The first of them.")]
    freshness: Annotated[Freshness, Field(description="How recent the rows are.")]
    final: Annotated[FinalReport | None, Field(description="What the final order was computed from; null: AIF's order.")] = None
    took_ms: Annotated[float, Field(description="Milliseconds from the arrival of the request.")]


class ErrorAnswer(_Body):
    """`code` is stable; `message` says what happened, the value, the expectation, the next step."""

    code: Annotated[str, Field(description="The stable name of the error.")]
    message: Annotated[str, Field(description="The failure with the value, the expectation, the next step.")]
    retry_after_s: Annotated[float | None, Field(description="Seconds after which a retry makes sense; null if none does.")] = None
    receipt: Annotated[Receipt | None, Field(description="Of a ranking that was refused: the decision.")] = None
