"""Settings of `aif train` as a follower, which runs permanently. What changes weights is an option, or in the model's file.

Here: section `train`. Not here: sections that several processes share (infra/settings.py).
"""

from pydantic import Field

from infra.settings import ProcessSettings, Section


class TrainSection(Section):
    """When a follower may publish, and where its metrics are."""

    metrics_port: int = Field(0, ge=0, le=65_535, description="Port of the follower's metrics page on loopback; 0: no page")
    late_s_max: float = Field(
        900.0, gt=0, description="Age of the newest impressions, or their lead, above which no checkpoint is published"
    )
    unreadable_share_max: float = Field(
        0.05, ge=0, le=1, description="Share of the newest impressions that may be unreadable when a checkpoint is published"
    )
    unknown_share_max: float = Field(
        0.2, ge=0, le=1, description="Share of the newest shown items that may be unknown when a checkpoint is published"
    )
    status_every_s: float = Field(10.0, ge=0.1, description="Time between two status lines")


class TrainSettings(ProcessSettings):
    """All settings of `aif train`."""

    train: TrainSection = Field(default_factory=TrainSection)
