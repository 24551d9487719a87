"""A replay that a version adopts: what streams/replay/replayed_rows.py leaves in the index store before the checkpoint record is published (protocol B3, B11).

Here: the replay, a fresh shard fed from the start of its topics to offsets of its own, and its parts. Not here: the version's build, which takes the
rows that still hold from there (streams/builders/full_part.py).
"""

from pathlib import Path

from schemas.topics import SHARD_TOPICS
from streams.builders.full_part import build_full_part
from streams.builders.jobs import BuildJob
from streams.replay.adopted_parts import ReplayedParts, encode_replayed, replayed_path
from streams.shard.shard import Shard
from tests.sim.boundary import Boundary
from tests.sim.disk import Disk
from tests.sim.encoder import FINGERPRINT, encoder_of
from tests.sim.worker import checkpoint_sha256
from tests.sim.world import World

_HOST = "replay"


def publish_adoption(world: World, boundary: Boundary) -> None:
    """Replays to anywhere in the topics, puts the rows into the store, publishes the record that adopts them."""
    if any(world.topics[topic, shard].start for topic in SHARD_TOPICS for shard in range(world.shards)):
        return  # a replay needs the start of the log
    version = world.checkpoints.end
    sha256 = checkpoint_sha256(f"adopt {version}")
    offsets = {s: {topic: world.random.randint(0, end) for topic, end in world.ends(s).items()} for s in range(world.shards)}
    encoder, parts = encoder_of(version, sha256), {}
    for number, ends in offsets.items():
        boundary.disks[_HOST] = Disk()
        shard = boundary.open_shard(Path(_HOST, "shard"), number, world.init, world.clock)
        _apply(world, shard, ends)
        shard.create_checkpoint(Path(_HOST, "checkpoint"))
        job = BuildJob(version, number, sha256, FINGERPRINT, f"{_HOST}/checkpoint")
        parts[number] = build_full_part(world.store, encoder, job).part  # type: ignore[arg-type]
    replayed = ReplayedParts(f"replay-{version}", sha256, FINGERPRINT, parts, offsets)
    world.store.place(replayed_path(replayed.label), encode_replayed(replayed))
    world.publish_checkpoint("adopt")
    world.say("adopt: replays to %s", offsets)


def _apply(world: World, shard: Shard, ends: dict[str, int]) -> None:
    for topic in SHARD_TOPICS:
        shard.apply(world.topics[topic, shard.number].records[: ends[topic]])
