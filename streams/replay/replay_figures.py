"""The figures of `aif replay`: declared and filled in. Not here: the replay (replay.py)."""

from typing import Any

from infra.bench.declared import Bench, Figure
from infra.bench.report import Figures
from streams.replay.replay import Replayed

REPLAY = Bench(
    "replay",
    "A version made again from the topics alone, and compared with the one that is served.",
    (
        Figure("digest_equal", "1 or 0", "rows are those of the version"),
        Figure("data_digest_equal", "1 or 0", "inputs are"),
        Figure("items", "count", "items in the replayed version"),
        Figure("records", "records", "records read"),
        Figure("replay_s", "s", "reading, applying and encoding, without the start of the process"),
    ),
    goals=("digest_equal == 1", "data_digest_equal == 1"),
    asked=("batch_size",),
)


def replay_figures(outcome: Replayed, version: int | None, batch_size: int, seconds: float) -> Figures:
    """What a replay found; `version`: as which it was adopted."""
    figures = Figures(REPLAY, _config(outcome, version, batch_size))
    if outcome.manifest is not None:
        figures.add("digest_equal", int(outcome.digest_equal))
        figures.add("data_digest_equal", int(outcome.data_digest_equal))
    figures.add("items", sum(s.rows for s in outcome.shards))
    figures.add("records", sum(s.records for s in outcome.shards))
    figures.add("replay_s", seconds)
    return figures


def _config(outcome: Replayed, version: int | None, batch_size: int) -> dict[str, Any]:
    manifest = outcome.manifest
    offsets = {s.shard: dict(s.source_offsets) for s in outcome.shards}
    config: dict[str, Any] = {
        "batch_size": batch_size,
        "digest": outcome.digest,
        "data_digest": outcome.data_digest,
        "source_offsets": offsets,
    }
    config["encoder_fingerprint"] = outcome.encoder_fingerprint
    if version is not None:
        config["adopted"] = version
    if manifest is not None:
        config |= {
            "version": f"{manifest.version}.{manifest.revision}",
            "live_digest": manifest.digest,
            "live_data_digest": manifest.data_digest,
            "live_encoder_fingerprint": manifest.encoder_fingerprint,
        }
    return config
