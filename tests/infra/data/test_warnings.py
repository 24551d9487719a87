"""A log that looks wrong is warned of with the remedy that makes the warning go away; a log that is right is not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from infra.data.choices import describe_choices
from infra.data.doubts import find_doubts
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.errors import Misconfigured
from tests.infra.data.shops import DAY_MS, START_MS, open_shop

MAPPING = """
[items]
file = "items.csv"
id = "id"
[items.features]
price = "price"
tags = {tags}
[behaviours]
file = "log.csv"
user = "user"
item = "item"
time = {time}
{more}
"""
SHOWN = (
    MAPPING.partition("tags =")[0] + '[impressions]\nfile = "log.csv"\nuser = "user"\nitem = "item"\ntime = "at"\nclicked = "click"\n{more}'
)
BAG = '{ column = "tags", kind = "bag" }'
Row = tuple[str, str, int, int, int]  # user, item, time, quantity, clicked


def rows_of_a_log() -> list[Row]:
    rng = np.random.default_rng(3)
    times = np.sort(rng.integers(START_MS, START_MS + 30 * DAY_MS, 600)).tolist()
    return [(f"u{rng.integers(30)}", f"i{int(rng.pareto(1.0)) % 40}", at, int(rng.integers(1, 4)), int(rng.random() < 0.3)) for at in times]


def open_log(folder: Path, rows: list[Row], mapping: str = MAPPING, **fields: str) -> MeasuredCatalogue:
    rng = np.random.default_rng(4)
    items = "id,price,tags\n" + "".join(f"i{n},{rng.random():.3f},{';'.join(rng.choice(['a', 'b', 'c'], 2))}\n" for n in range(40))
    log = "user,item,at,qty,click\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)
    return open_shop(folder, mapping.format(**{"tags": BAG, "time": '"at"', "more": "", **fields}), items=items, log=log)


def doubts(catalogue: MeasuredCatalogue) -> list[str]:
    return [doubt for doubt in find_doubts(catalogue.sources) if "partial rank correlation" not in doubt]  # of a random price, by chance


def test_a_log_that_is_right_is_not_warned_of(tmp_path: Path) -> None:
    assert not doubts(open_log(tmp_path, rows_of_a_log())) and not doubts(open_log(tmp_path, rows_of_a_log(), SHOWN))


def test_a_category_of_several_values_is_told_how_to_be_one(tmp_path: Path) -> None:
    found = doubts(open_log(tmp_path, rows_of_a_log(), '[schema]\nsim_category = "tags"\n' + MAPPING, tags='"tags"'))
    assert 'write separator = ";" to have the first one as the category, and a further feature { column = "tags", kind = "bag"' in found[0]
    right = '{ column = "tags", separator = ";" }\nall = ' + BAG
    assert not doubts(open_log(tmp_path, rows_of_a_log(), '[schema]\nsim_category = "tags"\n' + MAPPING, tags=right))


def in_minutes(rows: list[Row]) -> list[Row]:
    return [(user, item, at // 60_000, *others) for user, item, at, *others in rows]  # type: ignore[misc]


def returned(rows: list[Row]) -> list[Row]:
    return [(user, item, at, -qty if n % 9 == 0 else qty, clicked) for n, (user, item, at, qty, clicked) in enumerate(rows)]


@pytest.mark.parametrize(
    ("change", "wrong", "words", "right"),
    [
        (lambda rows: rows + rows[:60], {}, "60 of 660 rows of [behaviours] repeat user, item, time and kind", {"more": "distinct = true"}),
        (returned, {}, "11.2% of the cells of 'qty' are negative", {"more": "where = 'qty > 0'"}),
        (
            list,
            {"tags": '"tags"'},
            "features.tags has several values in 100% of its cells",
            {"tags": '{ column = "tags", kind = "bag", separator = ";" }'},
        ),
        (in_minutes, {}, "seconds to nanoseconds by their size", {"time": '{ column = "at", time_unit = "min" }'}),
        (list, {"time": '{ column = "at", time_unit = "s" }'}, 'read in time_unit = "s"', {"time": '{ column = "at", time_unit = "ms" }'}),
    ],
    ids=["copies", "returns", "a bag", "minutes", "another unit"],
)
def test_the_remedy_of_a_warning_works(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], wrong: dict[str, str], words: str, right: dict[str, str]
) -> None:
    rows = change(rows_of_a_log())
    (doubt,) = doubts(open_log(tmp_path, rows, **wrong))
    assert words in doubt
    (remedy,) = right.values()
    assert remedy in doubt, doubt
    assert not doubts(open_log(tmp_path, rows, **right))


def test_copies_of_a_shown_row_with_another_label_are_warned_of(tmp_path: Path) -> None:
    rows = rows_of_a_log()
    other = [(*row[:4], 1 - row[4]) for row in rows[:40]]
    (doubt,) = doubts(open_log(tmp_path, rows + other + rows[100:130], SHOWN))
    assert "70 of 670 rows of [impressions] repeat user, item and request of another, 40 with another outcome" in doubt
    (doubt,) = doubts(open_log(tmp_path, rows + rows[100:130], SHOWN))
    assert "30 of 630 rows" in doubt and "each counts once, so this changes no label" in doubt


def test_a_log_without_a_known_item_is_an_error(tmp_path: Path) -> None:
    foreign = [(row[0], f"x{row[1]}", *row[2:]) for row in rows_of_a_log()]
    for mapping, section in ((MAPPING, "behaviours"), (SHOWN, "impressions")):
        with pytest.raises(
            Misconfigured, match=rf"\[{section}\] item has no id in common with \[items\] id: items are like 'i0'.*like 'xi"
        ):
            find_doubts(open_log(tmp_path, foreign, mapping).sources)  # type: ignore[arg-type]
        (doubt,) = doubts(open_log(tmp_path, foreign + rows_of_a_log()[:100], mapping))  # type: ignore[operator]
        assert "% of what users did was with an item of [items], like 'i0', others with none, like 'x" in doubt


@pytest.mark.parametrize("far_ms", [1, START_MS + 30_000 * DAY_MS])
@pytest.mark.parametrize(
    ("mapping", "more"),
    [(MAPPING, ""), (SHOWN, ""), (MAPPING, "hold_out = false"), (SHOWN, "hold_out = false"), (MAPPING, 'split = "user"')],
)
def test_a_time_far_from_all_others_decides_no_window_and_no_split(tmp_path: Path, mapping: str, more: str, far_ms: int) -> None:
    more = f"[evaluation]\n{more}"
    right = open_log(tmp_path / "a", rows_of_a_log(), mapping, more=more)
    far = sorted([*rows_of_a_log(), ("u1", "i1", far_ms, 1, 1)], key=lambda row: row[2])
    wrong = open_log(tmp_path / "b", far, mapping, more=more)
    assert abs(wrong.sources.now_ms - right.sources.now_ms) < DAY_MS and abs(wrong.sources.end_ms - right.sources.end_ms) < DAY_MS
    assert abs(len(wrong.sources.sample_times) - len(right.sources.sample_times)) <= 1
    assert abs(len(list(wrong.impressions())) - len(list(right.impressions()))) < 20
    assert [f.name for f in wrong.schema.features] == [f.name for f in right.schema.features]
    if "split" not in more:  # a far row that is the latest of its user is held out, at the time of all that are
        (doubt,) = doubts(wrong)
        assert "windows and the evaluation do not go by these" in doubt


def test_a_period_that_leaves_nothing_to_measure_is_refused_by_the_key_that_gives_it(tmp_path: Path) -> None:
    far = [*rows_of_a_log(), ("u1", "i1", START_MS + 30_000 * DAY_MS, 1, 1)]
    with pytest.raises(Misconfigured, match=r"\[evaluation\] from = 2030-01-01 leaves nothing to measure: nearly all positives are before"):
        _ = open_log(tmp_path, far, more="[evaluation]\nfrom = 2030-01-01").sources.period


def test_a_split_by_user_that_holds_out_no_positive_measures_nobody(tmp_path: Path) -> None:
    """The last positives of all are none that were held out."""
    rows = [(f"u{u}", f"i{(7 * u + n) % 40}", START_MS + n * DAY_MS + u, 1, n < 4) for n in range(10) for u in range(20)]
    more = 'kind = "click"\n[impressions]\npositive_kinds = "True"\n[evaluation]\nsplit = "user"'
    with pytest.raises(Misconfigured, match="leaves no user to measure on"):
        open_log(tmp_path, rows, more=more).evaluation()


def test_a_key_of_another_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"features\.tags start is not known here; it belongs into \[train\]"):
        open_log(tmp_path, [], tags='{ taken_together = 8, start = "similarity" }')
    with pytest.raises(Misconfigured, match=r"rank_by is not known here; it belongs into \[model\]"):
        open_log(tmp_path, [], more='rank_by = "click"')


def test_the_mean_of_a_value_is_that_of_the_rows_before_each_time(tmp_path: Path) -> None:
    rows, prior = rows_of_a_log(), 20
    catalogue = open_log(
        tmp_path, rows, tags='"tags"\nlikes = { mean_of = "quantity", realtime = true }', more='[behaviours.features]\nquantity = "qty"'
    )
    told = list(catalogue.items())
    assert sum("likes" in update.features for update in told) > 40
    for update in told:
        before = [row for row in rows if row[2] < update.version]
        own = [row[3] for row in before if row[1] == update.item_id]
        mean = sum(row[3] for row in before) / max(1, len(before))
        expected = round((sum(own) + prior * mean) / (len(own) + prior), 3) if own else None
        assert update.features.get("likes") == (None if expected is None else pytest.approx(expected, abs=1e-3))
    with pytest.raises(Misconfigured, match=r"mean_of = 'quantities' is no column of .behaviours.features.; did you mean 'quantity'"):
        _ = open_log(
            tmp_path, rows, tags='"tags"\nlikes = { mean_of = "quantities" }', more='[behaviours.features]\nquantity = "qty"'
        ).schema


def test_a_dry_run_says_what_was_chosen_and_why(tmp_path: Path) -> None:
    sampled = describe_choices(open_log(tmp_path, rows_of_a_log(), tags='"tags"'))
    shown = describe_choices(open_log(tmp_path, rows_of_a_log(), SHOWN, more="[evaluation]\nfrom = 2024-03-20"))
    assert sampled[0].endswith("the last 15% of the positives") and shown[0].endswith("as [evaluation] says")
    assert any(choice.startswith("impressions: sampled from [behaviours] every") for choice in sampled)
    assert any(choice.startswith("moments: where the cuts give fewer than 4,000 requests") for choice in sampled)
    by_user = describe_choices(open_log(tmp_path, rows_of_a_log(), tags='"tags"', more='[evaluation]\nsplit = "user"'))
    assert by_user[0].startswith("measured: the latest fifth of the behaviours of each user")
    assert any(choice.startswith("statistics of items: taken, taken_6h, taken_1d, taken_7d, taken_together, because") for choice in sampled)
    assert any(choice.startswith("statistics of items: rate_click, shown, shown_") for choice in shown)
    assert "price: numeric, because every cell is a number" in sampled and shown[-1] == "rank_by: click * shown"


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ('{ column = "none", kind = "numeric" }', "'none' is empty, so"),
        ('{ column = "tags", pattern = "z+" }', "'tags' is empty or has nothing that its"),
    ],
)
def test_a_feature_without_a_value_in_any_row_is_warned_of(tmp_path: Path, tags: str, words: str) -> None:
    items = "id,price,tags,none\n" + "".join(f"i{n},{n}.5,a;b,\n" for n in range(40))
    log = "user,item,at,qty,click\n" + "".join(",".join(map(str, row)) + "\n" for row in rows_of_a_log())
    catalogue = open_shop(tmp_path, MAPPING.format(tags=tags, time='"at"', more=""), items=items, log=log)
    assert any("[items] features.tags has no value in any row" in doubt and words in doubt for doubt in doubts(catalogue))
