"""Settings of computation allocation."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from infra.settings import Section


class ClassShare(Section):
    """A request class: its share of the queue before it feels the others, and whether its requests may get less than full work."""

    share: float = Field(1.0, gt=0, le=1, description="Share of the queue that the class may fill at its own price")
    sheddable: bool = Field(True, description="Whether its requests may be ranked with fewer candidates, or dropped")


class AllocationSection(Section):
    """How much work a request gets under load."""

    mode: Literal["off", "shadow", "queue", "value"] = Field(
        "off", description="off, shadow, queue or value; at run time: `aif allocate mode`"
    )
    classes: Mapping[str, ClassShare] = Field(
        default_factory=dict,
        description='Request classes by name, as JSON: {"feed": {"share": 0.7, "sheddable": true}}; others: all, sheddable',
    )
    probe_share: float = Field(0.005, ge=0, le=0.1, description="Share of requests that get full work in mode value, to learn from")
    random_share: float = Field(0.005, ge=0, le=0.1, description="Share of requests that get a random action in mode value, to learn from")
    undropped_share: float = Field(0.01, ge=0, le=0.1, description="Share of requests that the drop rule may not drop in mode value")
    tables_every_s: float = Field(10.0, gt=0, le=3600, description="Time between two looks for a new table")
    cache_ttl_s: float = Field(
        0.0, ge=0, le=3600, description="How long an answer may be given again under load; 0: never, and none is kept"
    )
    cache_answers: int = Field(20_000, ge=1, le=10_000_000, description="Answers kept for that; one of 100 items takes about 10 kB")
    cache_by: tuple[str, ...] = Field(
        (), description="Context features that an answer must share with the request, as JSON, besides user and class"
    )
    outcomes: bool = Field(False, description="Send each decision to the topic allocation-outcomes, for `aif allocate fit`")
