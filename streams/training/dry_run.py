"""`aif train --dry-run`: what would be trained and how, with the origin of each choice."""

import typer

from infra.command import print_data, print_table
from streams.training.following.learner import OF_A_FIT, follower_choices
from streams.training.model_file import read_model_file
from streams.training.model_sections import explain_choices, read_train_choices
from streams.training.program import TrainPlan


def print_plan(plan: TrainPlan, as_json: bool, follow: bool = False) -> None:
    """Prints the model's sizes and each choice of [train] with where it is from. Raises what a training, or a follower, would raise for them."""
    model = read_model_file(plan.model).to_dict() if plan.model is not None else {}
    schema = model.pop("schema", {})
    rows = explain_choices(plan.model, plan.given)
    if follow:
        rate = follower_choices(plan.given, read_train_choices(plan.model)).learning_rate
        rows = [row | ({"value": rate} if row["name"] == "learning_rate" else {}) for row in rows if row["name"] not in OF_A_FIT]
    if as_json:
        print_data({"schema": schema, "model": model, "train": rows}, True)
        return
    print_data(model, False)
    typer.echo("")
    print_table("train", rows, False)
