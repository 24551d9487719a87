"""What nobody knows when a request is ranked is named where it stands as context; what is known then is not. A version of an item that is written at the time
of an impression is not known at that time."""

from pathlib import Path

import numpy as np
import pytest

from infra.data.doubts import find_doubts
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from tests.infra.data.shops import open_shop

MAPPING = """[items]\nfile = "log.csv"\nid = "item"\n[items.features]\nsold = { count_days = 28 }\ngenre = "genre"
[impressions]\nfile = "log.csv"\nrequest = "request"\nuser = "user"\nitem = "item"\ntime = "at"\nclicked = "clicked"\n[impressions.context]\nasked = """
REQUESTS, SHOWN = 200, 5
START_S = 1_700_000_000


def _write(folder: Path, mapping: str) -> MeasuredCatalogue:
    """A log of requests with one, two or three clicks, and columns that are known before them or not. Every item has one of four genres."""

    def item(n: int, k: int) -> int:
        return (n + 3 * k) % 11

    lines = ["request,user,item,at,clicked,engaged,stayed,clicks,hour,page,version,genre,wanted,searched"]
    for n, clicks in enumerate(np.random.default_rng(0).integers(1, 4, REQUESTS).tolist()):
        clicked_genre, shown_genres = item(n, -n % SHOWN) % 4, [item(n, k) % 4 for k in range(SHOWN)]
        for k in range(SHOWN):
            clicked = (k + n) % SHOWN < clicks
            cells = (
                f"r{n}",
                f"u{n % 9}",
                f"i{item(n, k)}",
                START_S + 40_000 * n,
                int(clicked),
                "YN"[not clicked],
                9.5 + n if clicked else 0,
                clicks,
            )
            page = "search" if clicks > 2 and n % 4 else "feed"
            genres = (f"g{item(n, k) % 4}", f"shelf {clicked_genre}", f"g{max(shown_genres, key=shown_genres.count)}")
            lines.append(",".join(map(str, (*cells, n % 24 + (k > 3), page, f"v{int(clicked)}", *genres))))
    return open_shop(folder, mapping, log="\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ('"engaged"', "tells the clicked rows of 100% of the requests from the others"),
        ('"stayed"', "tells the clicked rows of 100% of the requests from the others"),
        ('"clicks"', "goes with how many clicks its request has (partial rank correlation +1.00)"),
        ('{ column = "hour", kind = "categorical" }', ""),
        ('"wanted"', "names the genre of the clicked item in 100% of the requests"),
        ('"searched"', ""),
        ('"page"', ""),
        ('{ value = "here" }', ""),
    ],
)
def test_a_context_that_is_known_only_afterwards_is_named(tmp_path: Path, column: str, words: str) -> None:
    doubts = " ".join(find_doubts(_write(tmp_path, MAPPING + column).sources))
    assert words in doubts and ("[impressions.context] asked" in doubts) is bool(words)


def test_a_version_of_an_item_written_at_an_impression_is_known_after_it(tmp_path: Path) -> None:
    """The items' file is the log itself: its rows hold the answer of the impression of their own time."""
    items = '[items]\nfile = "log.csv"\nid = "item"\ntime = "at"\n[items.features]\nversion = "version"\n'
    catalogue = _write(tmp_path, items + MAPPING[MAPPING.index("[impressions]") :].replace("[impressions.context]\nasked = ", ""))
    told = {(update.item_id, update.version): update.features for update in catalogue.items()}
    assert len(told) > 50 and all(version % 1_000 == 1 for _, version in told)


def test_a_row_of_the_item_history_out_of_the_log_is_known_after_its_impression(tmp_path: Path) -> None:
    """[item_history] read from the log itself: at the time of an impression an item has the value of the one before."""
    history = '[item_history]\nfile = "log.csv"\nid = "item"\ntime = "at"\n[item_history.features]\nversion = "version"\n'
    mapping = (MAPPING + '"page"').replace("[impressions]", history + "[impressions]", 1)
    sources = _write(tmp_path, mapping).sources
    at_ms = 1_000 * (START_S + 40_000 * 20)
    at, after = (sources.states.told_at(np.arange(11), time_ms) for time_ms in (at_ms, at_ms + 1))
    assert [row.get("version") for row in at] != [row.get("version") for row in after]
