"""The demo from top to bottom. Read `run_demo` and you know what happens; acts.py says how each act measures."""

import itertools
import json
import shlex
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from infra.data.catalogue import Catalogue, Evaluation
from infra.data.open_catalogue import open_mapping, open_world
from infra.figures import Figures
from infra.heartbeat import HEARTBEAT_NAME
from infra.processes import Child, leave_in_order
from infra.settings import InfraSettings, load_settings
from lab.demo import acts
from lab.demo.progress import Steps
from lab.demo.server import RankingServer
from lab.demo.stage import Stage, json_figures
from lab.figures.declared import read_bench
from schemas.errors import AifError

DEMO = read_bench("demo")

SWITCHES = 3
TRAIN_WORLD_S, TRAIN_FILES_S = 4.0, 20.0  # what the world shows is learnt sooner
WARM_START_S = 0.5


@dataclass(frozen=True)
class DemoOptions:
    """What a person may choose."""

    items: int = 20_000
    seed: int = 0
    data: Path | None = None
    mapping: Path | None = None
    keep: bool = False
    train_s: float | None = None


def run_demo(options: DemoOptions) -> Figures:
    """Runs every act; whatever happens, no child process is left unless `keep` says so. Returns the figures of DEMO."""
    load_settings(InfraSettings)  # what no process reads would end every child, again and again: it is refused before any is started
    started = time.monotonic()
    figures = Figures(
        DEMO, {"items": options.items, "seed": options.seed, "data": options.data.name if options.data else "synthetic world"}
    )
    leave_in_order()
    stage: Stage | None = None
    try:
        with Steps() as steps:
            with steps.step("open the catalogue"):
                catalogue = _open_catalogue(options)
            stage = Stage(Path(tempfile.mkdtemp(prefix="aif-demo-")), catalogue.schema.id_kind, keep=False)
            stage.warm_up()
            evaluation = _play(stage, catalogue, options, figures, steps)
            figures.add("seconds_total", time.monotonic() - started)
        steps.print_figures(figures, f"{evaluation.measure}@{evaluation.k}")
        if options.keep:
            _wait_for_ctrl_c(stage, evaluation, steps)
    except AifError:
        if stage is not None:
            steps.say(f"The demo failed; the logs of its processes are in {stage.keep_logs()}")
        raise
    finally:
        if stage is not None:
            _stop(stage)
    return figures


def _stop(stage: Stage) -> None:
    """Stops everything, which takes seconds at most; from now on nothing interrupts that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stage.stop()


def _open_catalogue(options: DemoOptions) -> Catalogue:
    if options.data is not None and options.mapping is not None:
        return open_mapping(options.data, options.mapping)
    return open_world(options.items, options.seed)


def _play(stage: Stage, catalogue: Catalogue, options: DemoOptions, figures: Figures, steps: Steps) -> Evaluation:
    with steps.step("broker and topics"):
        stage.start_broker()
        stage.serve("worker", "worker", say=steps.say, heartbeat=stage.directory / "worker" / HEARTBEAT_NAME)
        stage.serve("server", "serve", "--port", str(stage.port), say=steps.say)
    train_s = options.train_s or (TRAIN_WORLD_S if options.data is None else TRAIN_FILES_S)
    trainer = _start_trainer(stage, catalogue, train_s) if catalogue.impression_count is not None else None
    with stage.publisher() as publisher:
        with steps.step("publish the catalogue", total=None) as step:
            acts.publish_catalogue(publisher, catalogue, step)
        with steps.step("train on the impressions topic"):
            trainer = trainer or _start_trainer(stage, catalogue, train_s)
            first = acts.wait_first_checkpoint(stage, trainer)
        with steps.step("build the first version, load it"):
            publisher.publish_checkpoint_file(stage.control.store, first)  # the trainer goes on with its warm starts
            stage.wait_for(lambda: stage.control_state().current is not None, "the first version to go live")
            server = RankingServer(stage.url)
            stage.wait_for(server.is_ready, "the server to have loaded it")
        evaluation = catalogue.evaluation()
        with steps.step("rank for users kept out of training", total=len(evaluation.users)) as step:
            quality = acts.show_ranking(server, evaluation, step)
        _add_quality(figures, quality)
        user = evaluation.users[0].user_id
        changes = catalogue.price_changes(acts.UPDATES_SHOWN + 200, seed=1)
        with steps.step("change prices, wait for the scores", total=acts.UPDATES_SHOWN) as step:
            waited = acts.show_updates(server, publisher, user, itertools.islice(changes, acts.UPDATES_SHOWN), step)
        figures.add("update_visible_ms", acts.median(waited))
        with steps.step("bring new items, wait for their scores", total=acts.NEW_ITEMS_SHOWN) as step:
            waited = acts.show_new_items(server, publisher, user, catalogue.arrivals(acts.NEW_ITEMS_SHOWN, seed=1), step)
        figures.add("new_item_visible_ms", acts.median(waited))
        with steps.step("switch versions under load", total=SWITCHES) as step:
            stage.finish(trainer)
            load = acts.Load(stage.url, evaluation)
            flips = acts.show_switches(stage, load, publisher, stage.checkpoints()[1:], changes, step)
        _add_switches(figures, flips, load)
    with steps.step("recompute the answers; replay the topics"):
        _audit(stage, load, figures)
    return evaluation


def _start_trainer(stage: Stage, catalogue: Catalogue, train_s: float) -> Child:
    """One training and its short warm starts, from the topics alone: it gets the schema, never the world.

    Where the number of impressions is known it can start beside their publication, because they are published last.
    """
    model = stage.directory / "model.json"
    model.write_text(json.dumps({"schema": catalogue.schema.to_dict(), "model": dict(catalogue.model), "train": catalogue.train.to_dict()}))
    files = ("--model", str(model), "--out", str(stage.checkpoint_directory))
    limits = ("--seconds", str(train_s), "--set", "fits=1", "--more", str(SWITCHES), "--more-seconds", str(WARM_START_S))
    wait = ("--wait-impressions", str(catalogue.impression_count or 0))
    return stage.start("train", "train", *files, *limits, *wait, "--json")


def _add_quality(figures: Figures, quality: acts.Quality) -> None:
    figures.add("hr_at_100", sum(quality.model) / len(quality.model))
    figures.add("popularity_hr_at_100", sum(quality.popularity) / len(quality.popularity))
    figures.add("random_hr_at_100", sum(quality.chance) / len(quality.chance))
    figures.add("rank_p50_ms", acts.median(quality.took_ms))


def _add_switches(figures: Figures, flips: int, load: acts.Load) -> None:
    figures.add("flips", flips)
    figures.add("answers_during_switch", len(load.answers))
    figures.add("slowest_during_switch_ms", max(ranked.took_ms for _, ranked in load.answers))


def _audit(stage: Stage, load: acts.Load, figures: Figures) -> None:
    """The audit of the answers and the replay side by side: two fresh processes that read files and topics only."""
    answers = stage.directory / "answers.jsonl"
    acts.write_answers(answers, load)
    audit = stage.start("verify-answers", "verify-answers", str(answers), "--json")
    replay = stage.start("replay", "replay", "--directory", str(stage.directory / "replay"), "--batch-size", "97", "--json")
    figures.add("mixed_versions", json_figures(stage.finish(audit))["mixed_versions"])
    replayed = json_figures(stage.finish(replay))
    figures.add("digest_equal", replayed["digest_equal"])
    figures.add("items", replayed["items"])


def _wait_for_ctrl_c(stage: Stage, evaluation: Evaluation, steps: Steps) -> None:
    """Everything keeps running; says what to try, until Ctrl-C, which is the ordinary end here. The files stay."""
    stage.keep = True
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in stage.environment().items())
    user = evaluation.users[0].user_id
    steps.say(
        f"""Everything keeps running in {stage.directory} until Ctrl-C. In another terminal:
  export {exports}
  aif index list
  aif query {user} --random 20 --url {stage.url}
  curl -s {stage.url}/v1/status"""
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        steps.say(f"stopping; the files stay in {stage.directory}")
