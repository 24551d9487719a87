"""Settings of `aif train` as a follower, which runs for ever. What changes weights is an option, or in the model's file.

Here: section `train`. Not here: sections that several processes share (infra/settings.py).
"""

from pydantic import Field

from infra.settings import ProcessSettings, Section


class TrainSection(Section):
    """When a follower may publish, and where its metrics are."""

    metrics_port: int = Field(0, ge=0, le=65_535)  # on loopback; 0 = no metrics page
    late_s_max: float = Field(900.0, gt=0)  # how old the newest impressions may be, or how far ahead, by their own time, to publish
    unreadable_share_max: float = Field(0.05, ge=0, le=1)  # of the newest records of impressions; one alone is borne, unless this is 0
    unknown_share_max: float = Field(0.2, ge=0, le=1)  # of the newest shown items
    status_every_s: float = Field(10.0, ge=0.1)


class TrainSettings(ProcessSettings):
    """All settings of `aif train`."""

    train: TrainSection = Field(default_factory=TrainSection)
