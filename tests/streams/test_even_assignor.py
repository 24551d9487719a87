"""How shards are shared among workers."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from faust.assignor.client_assignment import CopartitionedAssignment
from faust.assignor.copartitioned_assignor import CopartitionedAssignor

from streams.faust_shell import make_app

TOPICS = {"item-features", "new-items"}


@pytest.mark.parametrize(
    ("held", "shares"),
    [
        ([{0, 1}, {2, 3}, set()], [1, 1, 2]),
        ([{0, 1, 2, 3}, set()], [2, 2]),
        ([{0, 1}, {2, 3}], [2, 2]),
        ([{0}, {1}, {2}, {3}, set()], [0, 1, 1, 1, 1]),
    ],
)
def test_a_worker_that_joins_gets_a_share_where_there_are_enough_shards(held: list[set[int]], shares: list[int], tmp_path: Path) -> None:
    app = make_app("group", "127.0.0.1:1", "", tmp_path, SimpleNamespace(), 6.0)  # type: ignore[arg-type]
    workers = {f"worker-{n}": CopartitionedAssignment(set(actives), set(), set(TOPICS)) for n, actives in enumerate(held)}
    given = CopartitionedAssignor(TOPICS, workers, 4, app.assignor.replicas).get_assignment()
    assert sorted(len(one.actives) for one in given.values()) == shares
    assert set().union(*(one.actives for one in given.values())) == {0, 1, 2, 3}
    kept = [len(given[f"worker-{n}"].actives & actives) for n, actives in enumerate(held)]
    assert sum(kept) >= 2, "most stay where they are"
