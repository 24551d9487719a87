"""The demo from top to bottom. Read `run_demo` and you know what happens; acts.py says how each act measures."""

import itertools
import json
import signal
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.figures import Figures
from infra.heartbeat import HEARTBEAT_NAME
from infra.processes import Child, leave_in_order
from infra.settings import InfraSettings, load_settings
from lab.catalogues.catalogue import Catalogue, Evaluation
from lab.catalogues.open_catalogue import open_mapping, open_world
from lab.demo import acts
from lab.demo.keeper import Keeper, environment_file
from lab.demo.one_ranking import OneRanking, show_one_ranking
from lab.demo.progress import Steps
from lab.demo.stage import Stage, json_figures
from lab.figures.declared import read_bench
from lab.plain_client import PlainClient
from schemas.errors import AifError
from schemas.model.ranker.spec import RankerSpec
from streams.training.comparison import Gain

DEMO = read_bench("demo")

SWITCHES = 3
# Of the synthetic world's model: some seconds of training, and histories of at most 96 behaviours.
_RANKER = RankerSpec(width=32, layers=2, history_max=128, history_step=64, attention_norm=64)
_RANKER_STEPS = 100


@dataclass(frozen=True)
class DemoOptions:
    """The options of `aif demo`."""

    items: int = 20_000
    seed: int = 0
    data: Path | None = None
    mapping: Path | None = None
    train_steps: int | None = None


def run_demo(options: DemoOptions, keeper: Keeper | None = None, as_json: bool = False) -> Figures:
    """Runs every act and prints its results. With a keeper it then waits for SIGTERM. However it ends, no child process is left.

    Returns the figures of DEMO, and prints them as JSON on request.
    """
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
            stage = Stage(Path(tempfile.mkdtemp(prefix="aif-demo-")), catalogue.schema.id_kind)
            stage.warm_up()
            shown = _play(stage, catalogue, options, figures, steps)
            figures.add("seconds_total", time.monotonic() - started)
        steps.print_ranking(shown.ranking)
        steps.print_figures(figures, shown.evaluation, shown.gain)
        if as_json:
            figures.print_json()
        steps.print_next(environment_file() if keeper else None, shown.ranking.user_id)
        if keeper is not None:
            keeper.keep(stage.directory, stage.environment())
            threading.Event().wait()
    except AifError:
        if stage is not None:
            steps.say(f"The demo failed; the logs of its processes are in {stage.keep_logs()}")
        raise
    except KeyboardInterrupt:
        steps.say("stopping ...")
        raise
    finally:
        if stage is not None:
            _stop(stage)
        if keeper is not None:
            keeper.forget()
    return figures


def _stop(stage: Stage) -> None:
    """Stops everything, which takes at most 3 s; from now on nothing interrupts that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    stage.stop()


@dataclass(frozen=True)
class _Shown:
    """The results of the demo."""

    evaluation: Evaluation
    ranking: OneRanking
    gain: Gain


def _open_catalogue(options: DemoOptions) -> Catalogue:
    if options.data is not None and options.mapping is not None:
        return open_mapping(options.data, options.mapping)
    return open_world(options.items, options.seed)


def _play(stage: Stage, catalogue: Catalogue, options: DemoOptions, figures: Figures, steps: Steps) -> _Shown:
    with steps.step("broker and topics"):
        stage.start_broker()
        stage.serve("worker", "worker", say=steps.say, heartbeat=stage.directory / "worker" / HEARTBEAT_NAME)
        stage.serve("server", "serve", "--port", str(stage.port), say=steps.say)
        if catalogue.schema.kept_statistics:
            stage.serve("statistics", "statistics", say=steps.say, heartbeat=stage.directory / "statistics" / HEARTBEAT_NAME)
    trainer = _start_trainer(stage, catalogue, options) if catalogue.impression_count is not None else None
    with stage.publisher() as publisher:
        with steps.step("publish the catalogue", total=None) as step:
            categories = acts.publish_catalogue(publisher, catalogue, step)
        with steps.step("train on the impressions topic") as step:
            trainer = trainer or _start_trainer(stage, catalogue, options)
            first = acts.wait_first_checkpoint(stage, trainer, step)
        with steps.step("build the first version, load it") as step:
            publisher.publish_checkpoint_file(stage.control.store, first)  # the trainer goes on with its warm starts
            step.tell("building")
            stage.wait_for(lambda: stage.control_state().current is not None, "the first version to go live")
            step.tell("loading")
            server = PlainClient(stage.url)
            stage.wait_for(server.is_ready, "the server to have loaded it")
        with steps.step("choose users and candidates to measure on"):
            evaluation = catalogue.evaluation()
        with steps.step("score them without a model"):
            plain = acts.plain_scores(catalogue, evaluation, categories)
        with steps.step("rank for users kept out of training", total=len(evaluation.users)) as step:
            quality = acts.show_ranking(server, evaluation, plain, step)
        gain = quality.gain(f"{evaluation.measure}@{evaluation.k}")
        _add_quality(figures, quality, gain)
        if "ranker" in _model_of(catalogue, options):
            with steps.step("rank for them in two stages", total=len(evaluation.users)) as step:
                _add_orders(figures, acts.show_two_orders(server, evaluation, quality.ids, step))
        person = next((user for user in evaluation.users if user.behaviours), evaluation.users[0])
        with steps.step("one ranking, a price change, a new item"):
            ranking = show_one_ranking(server, publisher, catalogue, person)
        user = person.user_id
        changes = catalogue.price_changes(acts.UPDATES_SHOWN + 200, seed=1)
        with steps.step("change prices, wait for the scores", total=acts.UPDATES_SHOWN) as step:
            waited = acts.show_updates(server, publisher, user, itertools.islice(changes, acts.UPDATES_SHOWN), step)
        figures.add("update_visible_ms", acts.median(waited))
        with steps.step("bring new items, wait for their scores", total=acts.NEW_ITEMS_SHOWN) as step:
            waited = acts.show_new_items(server, publisher, user, catalogue.arrivals(acts.NEW_ITEMS_SHOWN, seed=1), step)
        figures.add("new_item_visible_ms", acts.median(waited))
        with steps.step("train the next versions") as step:
            stage.finish(trainer, lambda child: step.tell(acts.last_progress(child)))
        with steps.step("switch versions under load", total=SWITCHES) as step:
            load = acts.Load(stage.url, evaluation)
            flips = acts.show_switches(stage, load, publisher, stage.checkpoints()[1:], changes, step)
        _add_switches(figures, flips, load)
    _audit(stage, load, figures, steps)
    return _Shown(evaluation, ranking, gain)


def _model_of(catalogue: Catalogue, options: DemoOptions) -> dict[str, Any]:
    """The section [model]: the catalogue's, and a ranker for the synthetic world."""
    return {**({} if options.data else {"ranker": asdict(_RANKER)}), **catalogue.model}


def _start_trainer(stage: Stage, catalogue: Catalogue, options: DemoOptions) -> Child:
    """One training and its short warm starts, from the topics alone: it gets the schema, never the world.

    Steps end it, not seconds: a busy machine would take fewer steps, and the demo would show a worse model.
    It learns from all users, because the demo measures on others. If the number of impressions is known, it can start during their publication,
    because they are published last.
    """
    model = stage.directory / "model.json"
    train = catalogue.train.to_dict() | {"fits": 1, "ranker_steps": _RANKER_STEPS}
    model.write_text(json.dumps({"schema": catalogue.schema.to_dict(), "model": _model_of(catalogue, options), "train": train}))
    files = ("--model", str(model), "--out", str(stage.checkpoint_directory))
    steps = ("--steps", str(options.train_steps)) if options.train_steps else ()
    limits = ("--held-out", "0", "--more", str(SWITCHES), *steps)
    wait = ("--wait-impressions", str(catalogue.impression_count or 0))
    return stage.start("train", "train", *files, *limits, *wait, "--json")


def _add_quality(figures: Figures, quality: acts.Quality, gain: Gain) -> None:
    figures.add("hr_at_100", gain.ours.value)
    figures.add("plain_hr_at_100", gain.theirs.value)
    figures.add("popularity_hr_at_100", statistics.mean(quality.plain[acts.POPULARITY]))
    figures.add("random_hr_at_100", sum(quality.chance) / len(quality.chance))
    figures.add("rank_p50_ms", acts.median(quality.took_ms))


def _add_orders(figures: Figures, orders: acts.TwoOrders) -> None:
    figures.add("aif_hr_at_10", statistics.mean(orders.aif))
    figures.add("final_hr_at_10", statistics.mean(orders.final))
    figures.add("resident_share", orders.resident_share)


def _add_switches(figures: Figures, flips: int, load: acts.Load) -> None:
    figures.add("flips", flips)
    figures.add("answers_during_switch", len(load.answers))
    figures.add("slowest_during_switch_ms", max(ranked.took_ms for _, ranked in load.answers))


def _audit(stage: Stage, load: acts.Load, figures: Figures, steps: Steps) -> None:
    """The audit of the answers and the replay side by side: two fresh processes that read files and topics only."""
    answers = stage.directory / "answers.jsonl"
    acts.write_answers(answers, load)
    audit = stage.start("verify-answers", "verify-answers", str(answers), "--json")
    replay = stage.start("replay", "replay", "--directory", str(stage.directory / "replay"), "--batch-size", "97", "--json")
    with steps.step("recompute the answers") as step:
        figures.add(
            "mixed_versions", json_figures(stage.finish(audit, lambda child: step.tell(acts.last_progress(child))))["mixed_versions"]
        )
    with steps.step("replay the topics") as step:
        replayed = json_figures(stage.finish(replay, lambda child: step.tell(acts.last_progress(child))))
    figures.add("digest_equal", replayed["digest_equal"])
    figures.add("items", replayed["items"])
