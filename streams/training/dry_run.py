"""`aif train --dry-run`: what would be trained and how, with the origin of each choice."""

from pathlib import Path

import typer

from infra.command import print_data, print_table
from schemas.train_choices import TrainChoices
from streams.training.model_file import read_model_file, read_train_choices
from streams.training.program import TrainPlan


def print_plan(plan: TrainPlan, as_json: bool) -> None:
    """Prints the model's sizes and each choice of [train] with where it is from. Raises what a training would raise for them."""
    of_file = read_train_choices(plan.model) if plan.model is not None else TrainChoices()
    model = read_model_file(plan.model).to_dict() if plan.model is not None else {}
    schema = model.pop("schema", {})
    rows = [{"name": name, "value": value, "origin": _origin(plan, name, of_file)} for name, value in plan.train.to_dict().items()]
    if as_json:
        print_data({"schema": schema, "model": model, "train": rows}, True)
        return
    print_data(model, False)
    typer.echo("")
    print_table("train", rows, False)


def _origin(plan: TrainPlan, name: str, of_file: TrainChoices) -> str:
    if name in plan.given:
        return "command line"
    file: Path | None = plan.model
    return file.name if file is not None and getattr(of_file, name) != getattr(TrainChoices(), name) else "default"
