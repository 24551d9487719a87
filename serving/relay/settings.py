"""Settings of the relay. They decide when a prefix is computed, and change no number of a ranking. The answer names the rung."""

from pydantic import Field

from infra.settings import Section
from schemas.limits import FINAL_CANDIDATES_MAX


class RelaySection(Section):
    """Prefixes of final rankings: memory, load, times."""

    budget_ms: float = Field(30.0, ge=1, le=10_000, description="Time that a final ranking may take at its 99th percentile")
    margin_ms: float = Field(
        10.0,
        ge=0,
        le=10_000,
        description="How much earlier than that a ranking counts as at risk: what its connection and chance add to the prediction",
    )
    load_share: float = Field(0.6, gt=0, le=1, description="Share of one core's time that prefixes may take")
    kv_mib: float = Field(256.0, gt=0, le=1 << 20, description="Memory of the KV pool in MiB, on the engine's device")
    host_mib: float = Field(
        0.0, ge=0, le=1 << 20, description="Memory in MiB for copies of prefixes in host memory, next to the pool; 0: none"
    )
    signal_s: float = Field(5.0, gt=0, le=600, description="Time that an admitted prefix waits for its ranking; then it counts as wasted")
    keep_s: float = Field(300.0, ge=0, le=86_400, description="Time that a prefix is kept for the user's next request")
    candidates: int = Field(
        300, ge=1, le=FINAL_CANDIDATES_MAX, description="Candidates of a final ranking that a signal without a number stands for"
    )
