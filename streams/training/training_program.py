"""One run of `aif train`, from the topics to checkpoint files: read, join, fit, write, and shorter fits from there."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from infra.figures import Figures, Measured
from infra.garbage import collector_paused
from infra.index.checkpoint_upload import check_id_kind
from infra.index.store import open_index_store
from infra.kafka.publisher import Publisher
from infra.progress import open_progress
from infra.settings import ProcessSettings
from schemas.errors import Incompatible, Misconfigured
from schemas.model.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from schemas.model.network import AifNetwork
from schemas.train_choices import TrainChoices
from streams.training.event_decoder import Offsets
from streams.training.held_out import HeldOut, keep_out
from streams.training.impressions import TrainingSet, join_events
from streams.training.model_file import read_model_file, read_train_choices, require_model
from streams.training.refused_impressions import RefusedImpressions
from streams.training.similarity_start import new_network
from streams.training.team import ALONE, Group, fit_in_processes
from streams.training.topic_events import DataRange, TopicEvents, find_span
from streams.training.topic_snapshot import SnapshotEvents
from streams.training.trainer import LOSSES, WARM_RATE, TrainReport
from streams.training.trainer_state import StateFile

TRAIN = Measured(
    "train",
    {
        "requests": "count",
        "skipped_items": "count",
        "dead_lettered": "count",
        "steps": "count",
        "fit_s": "s",
        "loss": "nats",
        "copr": "nats",
        "click": "nats",
    },
)

_STATE_STEPS = 20


@dataclass(frozen=True)
class TrainPlan:
    """The options of `aif train`; see its help. `given`: choices of [train] that were named on the command line."""

    out: Path
    model: Path | None
    warm_start: Path | None
    name: str
    more: int
    more_seconds: float
    threads: int
    publish: bool
    wait_impressions: int = 0
    state: Path | None = None
    snapshot: Path | None = None
    processes: int = 1
    held_out: float = 0.0
    given: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def base(self) -> Checkpoint | None:
        """The checkpoint to continue from."""
        return None if self.warm_start is None else read_checkpoint(self.warm_start)

    @cached_property
    def train(self) -> TrainChoices:
        """How to train: the command line, else the model's file, else the card of the checkpoint, else the defaults. Raises Misconfigured."""
        return read_train_choices(self.model, {} if self.base is None else self.base.info.card).replaced(self.given)


def run_training(settings: ProcessSettings, plan: TrainPlan, group: Group = ALONE) -> Figures:
    """Reads the topics, fits, writes `1 + more` checkpoints into `plan.out`. Figures: steps, losses, seconds, requests. Of a group each process reads and fits,
    and the leader does the rest."""
    if group.size > 1 and plan.processes > 1:
        raise Misconfigured("processes_of_torchrun", f"--processes {plan.processes} under torchrun, which starts them itself; leave it out")
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.train.seed)
    network = _open_network(plan)
    if plan.publish:
        check_id_kind(open_index_store(settings.index.store), network.spec.schema.id_kind)
    figures = Figures(TRAIN, plan.train.to_dict() | {"threads": plan.threads})
    with open_progress() as progress:
        reading = progress.add_task("read the topics", total=None)
        kept = StateFile(plan.state) if plan.state is not None and group.leads else None
        refused = RefusedImpressions(settings.connection(), settings.kafka.topic_prefix) if plan.snapshot is None and group.leads else None
        source = _open_source(settings, plan, refused)
        source.decoder.require_ids(network.spec.schema.id_kind)
        for one in source.removed() if group.leads else ():
            progress.console.print(f"warning: {one}", highlight=False, soft_wrap=True)
        data, known = _read(source, network, plan.wait_impressions, kept, group)
        data, held = keep_out(data, plan.held_out)
        held_out = HeldOut(data, held)
        chosen = plan.train.with_steps(len(data))
        states = _open_states(plan, chosen, network, data, known) if kept is not None else None
        progress.update(reading, total=1, completed=1)
        figures.add("requests", len(data))
        figures.add("skipped_items", data.skipped_items)
        if refused is not None:
            refused.settle()
            figures.add("dead_lettered", refused.sent)
        for number in range(1 + plan.more):
            try:
                report = _fit(network, data, plan, chosen, number, progress, states if number == 0 else None, group)
            except KeyboardInterrupt:
                progress.console.print(_what_is_kept(plan), highlight=False, soft_wrap=True)
                raise
            if not group.leads:
                continue
            figures_of_ranker = _fit_ranker(network, data, chosen, progress) if network.ranker is not None and number == 0 else {}
            found = held_out.measure(network)
            path = _write(network, plan, number, _card(data, known, plan, chosen, report) | figures_of_ranker | {"held_out": found})
            losses = "".join(f", {loss} {value:.4f}" for loss, value in (("COPR", report.copr), ("click", report.click)) if value)
            losses += "" if found is None else f"; GAUC {found['gauc'][0]:.4f} of {found['requests']} requests that were not learnt"
            progress.console.print(f"{path}: {report.steps} steps, loss {report.loss:.4f}{losses}", highlight=False, soft_wrap=True)
            for warning in found["verdict"] if found is not None else ():
                progress.console.print(f"warning: {warning}", highlight=False, soft_wrap=True)
            if plan.publish:
                progress.console.print(
                    f"published as version {_publish(settings, network, path)}; `aif index list` shows what becomes of it"
                )
            if number == 0:
                figures.add("steps", report.steps)
                figures.add("fit_s", report.seconds)
                figures.add("loss", report.loss)
                figures.add("copr", report.copr)
                figures.add("click", report.click)
    return figures


def _what_is_kept(plan: TrainPlan) -> str:
    """What an interrupted fit leaves."""
    if plan.state is not None and plan.state.exists():
        return f"{plan.state} has the state of the fit: the same command continues from it"
    return "nothing is kept of this fit; --state FILE with --steps would keep it"


def _open_network(plan: TrainPlan) -> AifNetwork:
    if plan.base is not None:
        if plan.model is not None:
            require_model(plan.base.spec, plan.base.info.model_id, plan.model)
        return plan.base.network
    if plan.model is None:
        raise Misconfigured("no_model", "name a --model file with the feature schema, or a checkpoint with --warm-start")
    return new_network(read_model_file(plan.model), plan.train.seed, plan.train.start)


def _open_source(settings: ProcessSettings, plan: TrainPlan, refused: RefusedImpressions | None) -> TopicEvents | SnapshotEvents:
    """The topics, or an export of them."""
    if plan.snapshot is not None:
        return SnapshotEvents(plan.snapshot)
    return TopicEvents.of(settings, refused.refuse if refused is not None else None)


@collector_paused()
def _read(
    source: TopicEvents | SnapshotEvents, network: AifNetwork, wait_impressions: int, states: StateFile | None, group: Group
) -> tuple[TrainingSet, DataRange]:
    """The data and the offsets that it ends at: those of the kept state, if there is one, whatever was published since. Raises Incompatible (`other_data`)
    where another process of the group reads something else."""
    source.wait_for_impressions(wait_impressions)
    kept = states.read() if states is not None else None
    offsets: Offsets = group.share(source.ends() if kept is None else kept.about["offsets"])
    events = source.read(offsets)
    known = DataRange(offsets, *find_span([i.time_ms for i in events.impressions]))
    data = join_events(network.spec, network.w_hash_KM, events)
    if group.size > 1 and group.share(data.digest) != data.digest:
        raise Incompatible(
            "other_data", f"process {group.rank} does not read what the first one reads; give all of them the same topics or snapshot"
        )
    return data, known


def _open_states(plan: TrainPlan, chosen: TrainChoices, network: AifNetwork, data: TrainingSet, known: DataRange) -> StateFile:
    """Where the first fit keeps its state. Raises Misconfigured (`state_needs_steps`), Incompatible (`other_run`)."""
    assert plan.state is not None
    if not chosen.steps:
        raise Misconfigured(
            "state_needs_steps", "--state continues exactly only where --steps ends the fit, because a limit in seconds varies"
        )
    run = {"train": chosen.to_dict(), "spec": network.spec.fingerprint, "warm": plan.warm_start is not None, "losses": list(LOSSES)}
    states = StateFile(plan.state, every_steps=_STATE_STEPS, about={"run": run, "data": data.digest, "offsets": dict(known.offsets)})
    kept = states.read()
    if kept is not None and kept.about != states.about:
        different = sorted(name for name in states.about if kept.about.get(name) != states.about[name])
        raise Incompatible(
            "other_run",
            f"{plan.state} is the state of another run: {different} differ; name another file, or delete it to start from the beginning"
            + ("; profiles that were replaced since are gone from a compacted topic" if different == ["data"] else ""),
        )
    return states


def choose_for_fit(plan: TrainPlan, chosen: TrainChoices, number: int) -> TrainChoices:
    """The choices of the first fit, or of the `number`-th short warm start: other batches, and steps, where chosen, are the only limit. Whatever continues
    from trained weights has a lower learning rate and does not hold it."""
    if number or plan.warm_start is not None:
        chosen = dataclasses.replace(chosen, learning_rate=chosen.learning_rate * WARM_RATE, hold=0.0)
    if number:
        steps = -(-chosen.steps // 10)
        chosen = dataclasses.replace(chosen, seed=chosen.seed + number, fits=1, steps=steps, seconds=plan.more_seconds)
    return chosen


def _fit(
    network: AifNetwork,
    data: TrainingSet,
    plan: TrainPlan,
    chosen: TrainChoices,
    number: int,
    progress: Progress,
    states: StateFile | None,
    group: Group,
) -> TrainReport:
    """The first fit, or the `number`-th short warm start."""
    task = progress.add_task("fit (%)" if number == 0 else f"warm start {number} (%)", total=100)
    chosen = choose_for_fit(plan, chosen, number)

    def tell(share: float) -> None:
        progress.update(task, completed=min(100, int(100 * share)))

    if plan.processes > 1:
        report = fit_in_processes(network, data, chosen, plan.processes, tell, states)
    else:
        report = group.fit(network, data, chosen, tell, states)
    progress.update(task, completed=100)
    return report


def _fit_ranker(network: AifNetwork, data: TrainingSet, chosen: TrainChoices, progress: Progress) -> dict[str, Any]:
    """Fits the ranker to the network's answers; what the card says of it. A short warm start of the network leaves it as it is."""
    from streams.training.ranker.fit import fit_ranker

    task = progress.add_task("fit the ranker (%)", total=100)
    return {"ranker_loss": fit_ranker(network, data, chosen, lambda share: progress.update(task, completed=int(100 * share)))}


def _card(data: TrainingSet, known: DataRange, plan: TrainPlan, chosen: TrainChoices, report: TrainReport) -> dict[str, Any]:
    """What the checkpoint says of itself: the range of its data, how it was trained, what came of it. No time: the same fit gives the same file."""
    return {
        "data": known.to_dict() | {"digest": data.digest, "skipped_items": data.skipped_items},
        "requests": len(data),
        "steps": report.steps,
        "train": chosen.to_dict(),
        "warm_start": None if plan.warm_start is None else plan.warm_start.name,
    } | {name: getattr(report, name) for name in LOSSES}


def _write(network: AifNetwork, plan: TrainPlan, number: int, card: dict[str, Any]) -> Path:
    plan.out.mkdir(parents=True, exist_ok=True)
    path = plan.out / f"{plan.name}-{number:04d}.safetensors"
    write_checkpoint(path, network, f"{plan.name}-{number:04d}", card)
    return path


def _publish(settings: ProcessSettings, network: AifNetwork, path: Path) -> int:
    """The number of the version that it becomes."""
    index, kafka = settings.index, settings.kafka
    kind = network.spec.schema.id_kind
    with Publisher(settings.connection(), kafka.topic_prefix, "aif-train", index.shards, index.user_partitions, kind) as publisher:
        return publisher.publish_checkpoint_file(open_index_store(index.store), path).offset
