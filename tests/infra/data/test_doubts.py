"""What can be imported but looks wrong is said, with what to write instead; what looks right is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from infra.data.doubts import find_doubts
from tests.infra.data.shops import open_shop

ITEMS = '[items]\nfile = "log.csv"\nid = "item"\n[items.features]\nsold = { count_days = 28 }\n'
MAPPING = ITEMS + '[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\n'
SHOWN = (
    ITEMS.replace("log", "shown") + '[impressions]\nfile = "shown.csv"\nuser = "user"\nitem = "item"\ntime = "at"\nclicked = "clicked"\n'
)
USERS, DAYS = 20, 100
LOG = "user,item,at\n" + "".join(f"u{n % 9},i{n % 60},{1_700_000_000 + 40_000 * n}\n" for n in range(300))


def check_doubts(folder: Path, words: str, mapping: str, **files: str) -> None:
    """What is said of this shop has these words; of one without any nothing is said."""
    doubts = " ".join(find_doubts(open_shop(folder, mapping, **files).sources))
    assert words in doubts and bool(words) == bool(doubts)


@pytest.mark.parametrize(
    ("time", "by_user", "words"),
    [
        (
            'time = { column = "day", time_unit = "day" }\n[evaluation]\nfrom = 1970-03-20',
            False,
            'from 1970-01-01T00:00:00+00:00 to 1970-04-10T00:00:00+00:00: its numbers were read in time_unit = "day"; if',
        ),
        (
            'time = "day"',
            False,
            "to 1970-01-01T00:01:39+00:00: its numbers were read in seconds to nanoseconds by their size; name their unit: time = { column = ",
        ),
        ('time = "date"', False, ""),
        ("", True, "Only 0% of the users of the last part are in the part before"),
        ("", False, ""),
    ],
)
def test_a_clock_and_an_order_that_cannot_be_are_named(tmp_path: Path, time: str, by_user: bool, words: str) -> None:
    rows = sorted((user, day) if by_user else (day, user) for user in range(USERS) for day in range(DAYS))
    pairs = rows if by_user else [(user, day) for day, user in rows]
    cells = (f"u{user},i{(user + day) % 7},{day},2020-0{1 + day // 28}-{1 + day % 28:02d}\n" for user, day in pairs)
    check_doubts(tmp_path, words, MAPPING + time, log="user,item,day,date\n" + "".join(cells))


@pytest.mark.parametrize(("far", "is_said"), [("2122867355", True), ("100", True), ("1700040001", False)])
def test_a_time_that_is_far_from_all_others_is_named(tmp_path: Path, far: str, is_said: bool) -> None:
    check_doubts(tmp_path, "of [behaviours] are from 2023-11-1" if is_said else "", MAPPING + 'time = "at"\n', log=f"{LOG}u1,i2,{far}\n")


@pytest.mark.parametrize(
    ("before_s", "slow", "is_said"),
    [
        (1, 1, True),
        (43_200, 1, True),
        (0, 1, False),
        (-60, 1, False),
        (200_000, 1, False),
        (2, 5, True),
        (43_200, 5, False),
        (2, 40, False),
    ],
)
def test_behaviours_that_are_the_clicks_with_an_earlier_clock_are_named(tmp_path: Path, before_s: int, slow: int, is_said: bool) -> None:
    """One click in `slow` is told by that clock."""
    times = [1_700_000_000 + 40_000 * n for n in range(200)]
    shown = (f"r{n},u{n % 9},i{n % 7 + k},{at},{int(not k)}\n" for n, at in enumerate(times) for k in range(2))
    files = {
        "shown": "request,user,item,at,clicked\n" + "".join(shown),
        "log": "user,item,at\n" + "".join(f"u{n % 9},i{n % 7},{at - before_s * (n % slow == 0)}\n" for n, at in enumerate(times)),
        "items": "item\n" + "".join(f"i{n}\n" for n in range(8)),
    }
    mapping = MAPPING.replace('"log.csv"\nid', '"items.csv"\nid') + 'time = "at"\n' + SHOWN.partition("}\n")[2] + 'request = "request"\n'
    doubts = find_doubts(open_shop(tmp_path, mapping, **files).sources)
    assert [f"{1 / slow:.0%} of the clicks" in doubt and "same clock" in doubt for doubt in doubts] == [True] * is_said


@pytest.mark.parametrize(
    ("cells", "column", "words"),
    [
        (lambda n: f'"{n},{n % 90 + 10}"', '"price"', """its cells are numbers like '0,10'; write { column = "price", decimal = "," }"""),
        (lambda n: f'"1,{100 + n}.5"', '"price"', """its cells are numbers like '1,100.5'; write { column = "price", decimal = "." }"""),
        (
            lambda n: f"{n}.5" if n % 9 else "-",
            '"price"',
            """because not every cell is a number, like '-'; kind = "numeric" leaves these out""",
        ),
        (lambda n: f"${n}.99", '"price"', """numbers like '$0.99'; write { column = "price", pattern = '-?\\d[\\d.,]*', decimal = "." }"""),
        (lambda n: f'"{n},{n % 90 + 10} EUR"', '"price"', """pattern = '-?\\d[\\d.,]*', decimal = "," }"""),
        (lambda n: f'"{n},{n % 90 + 10}"', '{ column = "price", decimal = "," }', ""),
        (lambda n: f"{n}.5" if n % 9 else "-", '{ column = "price", kind = "categorical" }', ""),
        (lambda n: f"{n}.5", '"price"', ""),
        (lambda n: f"k{n}", '"price"', ""),
    ],
)
def test_numbers_that_read_as_categories_are_named(tmp_path: Path, cells: Callable[[int], str], column: str, words: str) -> None:
    items = "item,price\n" + "".join(f"i{n},{cells(n)}\n" for n in range(60))
    mapping = MAPPING.replace('"log.csv"\nid', '"items.csv"\nid').replace("sold =", f"price = {column}\nsold =") + 'time = "at"\n'
    check_doubts(tmp_path, words, mapping, items=items, log=LOG)


@pytest.mark.parametrize(
    "derived", ["sold = { count_days = 28 }", "together = { taken_together = 4 }", "", "sold = { count_days = 28, realtime = true }"]
)
def test_items_without_anything_that_a_model_sees_are_named(tmp_path: Path, derived: str) -> None:
    mapping = MAPPING.replace("sold = { count_days = 28 }", derived) + 'time = "at"\n'
    doubts = " ".join(find_doubts(open_shop(tmp_path, mapping, log=LOG).sources))
    assert ("no features and no embedding" in doubts) is ("realtime" in derived)
