"""`aif train --follow` as a process: how it finds the model and the offsets to start from, and how its parts are opened and closed.

    network    of the checkpoint of the live version (control log, index store), or of the stored state of an earlier run
    view       the topics read from their beginning up to where that model's training ended, or up to the stored offsets
    follower   runs until SIGTERM, SIGINT or SIGHUP, which take effect between two rounds

Here: only wiring. Not here: the loop (follower.py) and its parts.
"""

import contextlib
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from infra.clock import Clock, SystemClock
from infra.garbage import collector_paused, settle_garbage_collection
from infra.index.control_log import ControlLog
from infra.index.parts import read_checkpoint_copy
from infra.index.store import IndexStore, open_index_store
from infra.kafka.admin import check_topic_ids, start_offsets, topic_ids
from infra.kafka.publisher import Publisher
from infra.kafka.security import Bootstrap
from infra.metrics import Metrics, open_metrics_page
from infra.processes import stop_signals
from schemas.errors import Incompatible
from schemas.ids import IdKind
from schemas.model.checkpoint import Checkpoint, read_checkpoint
from schemas.topics import IMPRESSIONS
from schemas.train_choices import TrainChoices
from streams.data_directory import hold_directory
from streams.training.event_decoder import CONTEXT_TOPICS, TRAINING_TOPICS, EventDecoder, Offsets
from streams.training.following.followed_log import FollowedLog
from streams.training.following.follower import Follower, Place, decode_place
from streams.training.following.learner import OnlineLearner, follower_choices
from streams.training.following.publications import Publications
from streams.training.following.status import StatusTeller
from streams.training.following.view import View
from streams.training.model_file import read_train_choices, require_model
from streams.training.refused_impressions import RefusedImpressions
from streams.training.settings import TrainSettings
from streams.training.topic_events import as_text, fetch_ends, partitions_of
from streams.training.trainer_state import StateFile, TrainerState

_POLL_S = 0.5
_log = logging.getLogger("aif.train.follow")


@dataclass(frozen=True)
class FollowPlan:
    """The options of `aif train --follow`; see its help. Without `warm_start` it takes the checkpoint of the live version, as soon as there is one. The
    `model` is a model file; a checkpoint of another model is refused. The choices of [train] from the command line are `given`."""

    out: Path
    name: str = "online"
    every_s: float = 300.0
    warm_start: Path | None = None
    model: Path | None = None
    state: Path | None = None
    threads: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def state_path(self) -> Path:
        """The file of the state: weights, moments, generator and offsets."""
        return self.state or self.out / f"{self.name}.state"

    def learning(self, card: Mapping[str, Any]) -> TrainChoices:
        """How to learn from a checkpoint with this card. Raises Misconfigured."""
        return follower_choices(self.given, read_train_choices(self.model, card))


def run_follower(settings: TrainSettings, plan: FollowPlan, say: Callable[[str], None]) -> None:
    """Follows in this process until SIGTERM, SIGINT or SIGHUP; `say` gets the status lines.

    Raises Incompatible where the log is another or no longer holds the offsets of the stored state, or the model is not that of `plan.model`.
    Raises Misconfigured (`data_dir_in_use`) where another follower keeps its state in the same folder.
    """
    stop, metrics = threading.Event(), Metrics()
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_directory(plan.state_path.parent, "--state"))
        for number in stop_signals():
            signal.signal(number, lambda *_: stop.set())
        plan.learning({})  # what does not read is refused before a live version is waited for
        torch.set_num_threads(plan.threads)
        if settings.train.metrics_port:
            stack.callback(open_metrics_page(metrics, settings.train.metrics_port)[1])
        follower = stack.enter_context(open_follower(settings, plan, say, stop.is_set, metrics))
        if follower is not None:
            follower.run(stop.is_set)


@contextlib.contextmanager
def open_follower(
    settings: TrainSettings,
    plan: FollowPlan,
    say: Callable[[str], None],
    stopping: Callable[[], bool],
    metrics: Metrics,
    clock: Clock | None = None,
) -> Iterator[Follower | None]:
    """A follower with its log and its publisher, which are closed at the end of the block; None if it was asked to stop before there was a live
    version to start from, or before the topics were read."""
    clock = clock or SystemClock()
    store = open_index_store(settings.index.store)
    control = ControlLog(store)
    base = _open_base(plan, control, store, say, stopping)
    if base is None:
        yield None
        return
    if plan.model is not None:
        require_model(base.spec, base.info.model_id, plan.model)
    index, bootstrap, prefix = settings.index, settings.connection(), settings.kafka.topic_prefix
    ids = _check_topics(control, bootstrap, prefix)
    refused = RefusedImpressions(bootstrap, prefix)
    decoder = EventDecoder(index.shards, index.user_partitions, IdKind(index.id_kind), refused.refuse)
    decoder.require_ids(base.spec.schema.id_kind)
    plan.state_path.parent.mkdir(parents=True, exist_ok=True)
    # The model that is followed, and the topics: for the kept state, and for the cards of checkpoints.
    followed = {"model_id": base.info.model_id, "spec": base.spec.fingerprint, "lsh": base.info.lsh_version}
    states = StateFile(plan.state_path, about={"base": followed, "topic_ids": ids})
    kept = _kept(states, say)
    learning = plan.learning(base.info.card if kept is None else kept.about)
    learner, place, begins = _open_learner(settings, learning, base, states, kept)
    begin: Offsets = {t: as_text(start_offsets(bootstrap, prefix + t)) for t in CONTEXT_TOPICS} | {IMPRESSIONS: place.ends[IMPRESSIONS]}
    with (
        Publisher(bootstrap, prefix, "aif-train", index.shards, index.user_partitions, index.id_kind) as publisher,
        FollowedLog(bootstrap, prefix, decoder, begin, refused.settle, ids, stopping) as log,
    ):
        view = _open_view(base, place, log)
        if view is None:
            yield None
            return
        announce: Callable[[Path], int] = lambda path: publisher.publish_checkpoint_file(store, path).offset  # noqa: E731 - a closure over the publisher
        publications = Publications(plan.out, plan.name, plan.every_s, announce, control.refresh, clock, learner.steps)
        teller = StatusTeller(say, metrics, clock, settings.train.status_every_s)
        say(json.dumps({"ready": True, "pid": os.getpid(), "base": base.info.model_id, "begins": begins, "round": place.number}))
        yield Follower(log, decoder, view, learner, states, place, publications, settings.train, clock, teller)


def _open_base(
    plan: FollowPlan, control: ControlLog, store: IndexStore, say: Callable[[str], None], stopping: Callable[[], bool]
) -> Checkpoint | None:
    """The checkpoint of `plan.warm_start`, else that of the live or pinned version, for which it waits; None if asked to stop meanwhile."""
    if plan.warm_start is not None:
        return read_checkpoint(plan.warm_start)
    told = False
    while (current := control.refresh().current) is None:
        if stopping():
            return None
        if not told:
            say(json.dumps({"waiting": "no version is live yet; publish a checkpoint, or name one with --warm-start"}))
            told = True
        time.sleep(_POLL_S)
    return read_checkpoint(read_checkpoint_copy(store, current.checkpoint_sha256), current.checkpoint_sha256)


def _open_learner(
    settings: TrainSettings, learning: TrainChoices, base: Checkpoint, states: StateFile, kept: TrainerState | None
) -> tuple[OnlineLearner, Place, str]:
    """(the learner, its place, which place that is): from the stored state, or with the weights of `base` at its first place. Raises Incompatible
    where the stored offsets are of other topics (`other_topic`), or not in the log (`log_gone`, `log_shorter`)."""
    learner, prefix = OnlineLearner(base.network, learning), settings.kafka.topic_prefix
    if kept is None:
        return learner, *_first_place(settings.connection(), prefix, base)
    check_topic_ids(kept.about.get("topic_ids", {}), states.about["topic_ids"], prefix)
    place = decode_place(kept.about["place"])
    _check_log(settings.connection(), prefix, place, states.path)
    learner.restore(kept)
    return learner, place, "kept state"


def _check_log(bootstrap: Bootstrap, prefix: str, place: Place, path: Path) -> None:
    """Raises Incompatible where the log does not hold the records that the stored state continues with: they would be waited for permanently."""
    step = f"move {path} away, or name another file with --state: the follower then begins again"
    ends, starts = fetch_ends(bootstrap, prefix), start_offsets(bootstrap, prefix + IMPRESSIONS)
    for topic in TRAINING_TOPICS:
        for p, wanted in partitions_of(place.next or place.ends, topic).items():
            if wanted > (end := partitions_of(ends, topic).get(p, 0)):
                lost = (
                    f"the stored state is at offset {wanted} of {prefix}{topic} partition {p}, and the log ends at {end}: it lost its end"
                )
                raise Incompatible("log_shorter", f"{lost}; {step}")
    for p, begin in partitions_of(place.ends, IMPRESSIONS).items():
        if begin < starts.get(p, 0):
            removed = (
                f"the stored state continues at offset {begin} of {prefix}{IMPRESSIONS} partition {p}, and the log starts at {starts[p]}"
            )
            raise Incompatible("log_gone", f"{removed}: the broker removed the records in between; {step}")


def _open_view(base: Checkpoint, place: Place, log: FollowedLog) -> View | None:
    """The items and users of the topics up to `place`; None if asked to stop meanwhile."""
    view = View(base.spec, base.w_hash)
    view.settled_ms = place.settled_ms
    with collector_paused():
        if (events := log.read(place.ends)) is None:
            return None
        view.fold(events)
    settle_garbage_collection()
    return view


def _check_topics(control: ControlLog, bootstrap: Bootstrap, prefix: str) -> dict[str, str]:
    """Kafka's ids of the topics of training. Raises Incompatible (`other_topic`) where the index was built from others, as on another cluster."""
    init, found = control.refresh().init, topic_ids(bootstrap, prefix)
    check_topic_ids({} if init is None else init.topic_ids, found, prefix)
    return {topic: found[topic] for topic in TRAINING_TOPICS if topic in found}


def _kept(states: StateFile, say: Callable[[str], None]) -> TrainerState | None:
    """The stored state, if there is one of the same spec and LSH version. One of another model is renamed, never overwritten."""
    kept = states.read()
    if kept is None or all(kept.about["base"][name] == states.about["base"][name] for name in ("spec", "lsh")):
        return kept
    aside = states.path.with_name(f"{states.path.name}.{kept.about['base']['spec']}")
    states.path.replace(aside)
    say(json.dumps({"starts_over": f"the kept state is of another model; it is now {aside.name}"}))
    return None


def _first_place(bootstrap: Bootstrap, prefix: str, base: Checkpoint) -> tuple[Place, str]:
    """(the place to start from, its name). It is where the training of `base` ended according to its card, so that no impression is left out or learnt twice.
    If the card does not say, or the log does not hold that place, it is the end of the log."""
    ends = fetch_ends(bootstrap, prefix)
    told = base.info.card.get("data")
    offsets = partitions_of(told["offsets"], IMPRESSIONS) if isinstance(told, Mapping) and "offsets" in told else {}
    low, high = start_offsets(bootstrap, prefix + IMPRESSIONS), partitions_of(ends, IMPRESSIONS)
    if offsets.keys() == low.keys() and all(low[p] <= offset <= high[p] for p, offset in offsets.items()):
        return Place(0, {**ends, IMPRESSIONS: as_text(offsets)}), "where the base ended"
    return Place(0, ends), "end of the log"
