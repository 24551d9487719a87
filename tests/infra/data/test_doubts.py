"""What can be imported but looks wrong is said, with what to write instead; what looks right is not."""

from pathlib import Path

import pytest

from infra.data.doubts import find_doubts
from infra.data.mapped_catalogue import MappedCatalogue
from infra.data.mapping import read_mapping

MAPPING = """[items]\nfile = "log.csv"\nid = "item"\n[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\n"""
USERS, DAYS = 20, 100


@pytest.mark.parametrize(
    ("time", "by_user", "words"),
    [
        (
            'time = { column = "day", time_unit = "day" }\n[evaluation]\nfrom = 1970-03-20',
            False,
            'from 1970-01-01T00:00:00 to 1970-04-10T00:00:00: numbers count from 1970, in the time_unit that is given, "day"; if',
        ),
        (
            'time = "day"',
            False,
            "from 1970-01-01T00:00:00 to 1970-01-01T00:01:39: numbers count from 1970, in seconds unless time = { column = ..., time_unit",
        ),
        ('time = "date"', False, ""),
        ("", True, "only 0% of the users of the last part are in the part before"),
        ("", False, ""),
    ],
)
def test_a_clock_and_an_order_that_cannot_be_are_named(tmp_path: Path, time: str, by_user: bool, words: str) -> None:
    rows = sorted((user, day) if by_user else (day, user) for user in range(USERS) for day in range(DAYS))
    pairs = rows if by_user else [(user, day) for day, user in rows]
    cells = (f"u{user},i{(user + day) % 7},{day},2020-0{1 + day // 28}-{1 + day % 28:02d}\n" for user, day in pairs)
    (tmp_path / "log.csv").write_text("user,item,day,date\n" + "".join(cells))
    (tmp_path / "shop.toml").write_text(MAPPING + time)
    doubts = " ".join(find_doubts(MappedCatalogue(read_mapping(tmp_path / "shop.toml"), tmp_path).sources))
    assert words in doubts and bool(words) == bool(doubts)


@pytest.mark.parametrize(("before_s", "is_said"), [(1, True), (43_200, True), (0, False), (-60, False), (200_000, False)])
def test_behaviours_that_are_the_clicks_with_an_earlier_clock_are_named(tmp_path: Path, before_s: int, is_said: bool) -> None:
    times = [1_700_000_000 + 40_000 * n for n in range(200)]
    shown = (f"r{n},u{n % 9},i{n % 7 + k},{at},{int(not k)}\n" for n, at in enumerate(times) for k in range(2))
    (tmp_path / "shown.csv").write_text("request,user,item,at,clicked\n" + "".join(shown))
    (tmp_path / "log.csv").write_text("user,item,at\n" + "".join(f"u{n % 9},i{n % 7},{at - before_s}\n" for n, at in enumerate(times)))
    (tmp_path / "items.csv").write_text("item\n" + "".join(f"i{n}\n" for n in range(8)))
    (tmp_path / "shop.toml").write_text(
        MAPPING.replace('"log.csv"\nid', '"items.csv"\nid')
        + 'time = "at"\n[impressions]\nfile = "shown.csv"\nrequest = "request"\nuser = "user"\nitem = "item"\ntime = "at"\nclicked = "clicked"\n'
    )
    doubts = find_doubts(MappedCatalogue(read_mapping(tmp_path / "shop.toml"), tmp_path).sources)
    assert ["100% of the clicks" in doubt and "same clock" in doubt for doubt in doubts] == [True] * is_said
