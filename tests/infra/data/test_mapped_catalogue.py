"""Laws of catalogues from files, on two made-up shops of different shapes."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from infra.data.choices import describe_choices
from infra.data.mapping import read_mapping
from lab.catalogues.measured_catalogue import MeasuredCatalogue
from schemas.errors import Misconfigured
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, UserFeaturesRecord
from schemas.features import Scope
from schemas.ids import IdKind
from schemas.kinds import BAG, CATEGORICAL, EMBEDDING, NUMERIC
from schemas.train_choices import FOR_MAPPED_DATA
from tests.infra.data.shops import (
    DAY_MS,
    NUMBER_ITEMS,
    NUMBER_WIDTH,
    PLAIN_MAPPING,
    START_MS,
    TEXT_ITEMS,
    WIDTH,
    open_items,
    open_shop,
    write_items,
    write_number_shop,
    write_text_shop,
)

KINDS = {
    "items": ItemFeaturesUpdate,
    "new_items": NewItem,
    "users": UserFeaturesRecord,
    "behaviours": Behaviour,
    "impressions": ImpressionRecord,
}


def _open(mapping: Path, limit: int | None = None) -> MeasuredCatalogue:
    return MeasuredCatalogue(read_mapping(mapping), mapping.parent, limit)


@pytest.fixture(params=[write_text_shop, write_number_shop], ids=["text", "number"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write: Callable[[Path], Path] = request.param
    return write(tmp_path)


@pytest.fixture
def text_shop(tmp_path: Path) -> MeasuredCatalogue:
    return _open(write_text_shop(tmp_path))


@pytest.fixture
def number_shop(tmp_path: Path) -> MeasuredCatalogue:
    return _open(write_number_shop(tmp_path))


def _all_events(catalogue: MeasuredCatalogue) -> Iterator[object]:
    for kind in KINDS:
        yield from getattr(catalogue, kind)()
    yield from catalogue.price_changes(20, 1)
    yield from (event for pair in catalogue.arrivals(20, 1) for event in pair)


def test_same_files_and_mapping_give_the_same_events(shop: Path) -> None:
    one, other = _open(shop), _open(shop)
    assert one.schema.fingerprint == other.schema.fingerprint
    assert list(_all_events(one)) == list(_all_events(other))
    assert list(one.items()) == list(one.items())


def test_every_event_reads_back_from_its_own_json(shop: Path) -> None:
    catalogue = _open(shop)
    for name, kind in KINDS.items():
        events = list(getattr(catalogue, name)())
        assert events or (name == "users" and catalogue.mapping.users is None)
        for event in events:
            assert kind.model_validate_json(event.model_dump_json(by_alias=True)) == event


def test_every_feature_of_an_event_is_declared_with_its_kind(shop: Path) -> None:
    catalogue = _open(shop)
    declared = {f.name: f for f in catalogue.schema.of(Scope.ITEM)}
    shapes = {NUMERIC: float, BAG: list, EMBEDDING: list, CATEGORICAL: (int, str)}
    for update in catalogue.items():
        for name, value in update.features.items():
            assert isinstance(value, shapes[declared[name].kind]), (name, value)


def test_nothing_from_the_evaluation_time_on_is_told(shop: Path) -> None:
    catalogue = _open(shop)
    now_ms = catalogue.evaluation().now_ms
    assert all(update.version <= now_ms for update in catalogue.items())
    assert all(behaviour.time_ms < now_ms for behaviour in catalogue.behaviours())
    assert all(record.time_ms < now_ms for record in catalogue.impressions())
    for user in catalogue.evaluation().users:
        assert all(b.time_ms < now_ms for b in user.behaviours)
    assert catalogue.sources.history.time_X.max() >= now_ms, "the files do hold later rows"


def test_sampled_windows_end_before_the_evaluation(text_shop: MeasuredCatalogue) -> None:
    now_ms, positives = text_shop.evaluation().now_ms, text_shop.sources.positives
    known = {
        (positives.user_ids[u], positives.item_ids[i], t)
        for u, i, t in zip(positives.user_X, positives.item_X, positives.time_X, strict=True)
    }
    records = list(text_shop.impressions())
    assert records
    for record in records:
        end_ms = record.time_ms + 7 * DAY_MS
        assert end_ms <= now_ms
        bought = {item for user, item, t in known if user == record.user_id and record.time_ms <= t < end_ms}
        for shown in record.items:
            assert shown.clicked == (shown.item_id in bought)
        clicked = sum(s.clicked for s in record.items)
        assert 1 <= clicked <= 2 and len(record.items) <= clicked * 4
        assert any(user == record.user_id and t < record.time_ms for user, _, t in known), "only users with a history"


@pytest.mark.parametrize(("start", "days"), [("2024-04-05", 10), ("2024-03-10", 28)])
def test_a_sampled_window_is_as_long_as_the_evaluation_and_four_weeks_at_most(tmp_path: Path, start: str, days: int) -> None:
    mapping = write_text_shop(tmp_path)
    mapping.write_text(mapping.read_text().replace("window_days = 7\n", "").replace("from = 2024-04-05", f"from = {start}"))
    assert round(_open(mapping).sources.window_ms() / DAY_MS) == days


def test_a_catalogue_that_holds_nothing_out_samples_with_a_window_of_days(tmp_path: Path) -> None:
    mapping = write_text_shop(tmp_path)
    mapping.write_text(mapping.read_text().replace("window_days = 7\n", "").replace("from = 2024-04-05", "hold_out = false"))
    catalogue = _open(mapping)
    first, last = catalogue.sources.usual_times
    assert catalogue.sources.window_ms() == round(0.15 * (last - first)) > DAY_MS
    assert any("15% of the log" in choice for choice in describe_choices(catalogue))


def test_behaviours_are_in_order_of_time_and_filtered(text_shop: MeasuredCatalogue) -> None:
    behaviours = list(text_shop.behaviours())
    times = [b.time_ms for b in behaviours]
    assert times == sorted(times)
    assert {b.kind for b in behaviours} == {"buy", "add_to_cart"}
    assert all(b.features["amount"] > 0 for b in behaviours)
    assert set(text_shop.schema.behaviour_kinds) == {"buy", "add_to_cart"}


def test_repeated_rows_count_once_where_the_mapping_says_so(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,at,kind\n" + "1,1,9,buy\n2,1,9,buy\n1,1,9,buy\n1,1,9,view\n1,1,8,buy\n" * 3)
    text = '[items]\nfile = "items.csv"\nid = "id"\n[evaluation]\nhold_out = false\n[behaviours]\nfile = "log.csv"\nuser = "user"\n'
    text += 'item = "item"\ntime = "at"\nkind = "kind"\n'
    for line, expected in (("", 15), ("distinct = true\n", 4)):
        told = list(_open(write_items(tmp_path, text + line, id=[1])).behaviours())
        assert len(told) == expected and len({(b.user_id, b.item_id, b.time_ms, b.kind) for b in told}) == 4


def test_rejected_rows_are_named_with_file_row_and_reason(text_shop: MeasuredCatalogue) -> None:
    list(text_shop.behaviours())
    list(text_shop.behaviours())
    assert [(r.section, r.file, r.row, r.reason) for r in text_shop.rejections.named] == [
        ("behaviours", "log.csv", 1501, "no usable user: column 'login' is empty"),
        ("behaviours", "log.csv", 1502, "no usable time: column 'at' is 'yesterday'"),
    ]


def test_text_ids_and_columns_of_numbers_are_read(text_shop: MeasuredCatalogue) -> None:
    assert text_shop.schema.id_kind is IdKind.TEXT
    assert text_shop.schema.mm_width == WIDTH and text_shop.schema.multimodal == "picture"
    first = next(text_shop.items())
    assert first.item_id == "sku-000/ä"
    assert first.features["origin"] == "here" and first.features["on_sale"] == "no" and len(first.features["tags"]) == 2
    assert {f.name for f in text_shop.schema.of(Scope.USER)} == {"age", "city"}
    missing = next(u for u in text_shop.users() if u.user_id == "user2@example")
    assert missing.features == {"age": 22.0}


def test_a_profile_with_a_time_is_the_latest_before_the_evaluation_and_holds_from_then_on(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item,at\n" + "".join(f"{user},1,{at}\n" for at in (10, 50) for user in range(1, 5)))
    (tmp_path / "people.csv").write_text(
        "id,at,city\n1,20,new\n1,10,old\n1,40,later\n2,40,later\n3,yesterday,none\n4,20,first\n4,20,last\n"
    )
    text = '[items]\nfile = "items.csv"\nid = "id"\n[behaviours]\nfile = "log.csv"\nuser = "user"\nitem = "item"\ntime = "at"\n'
    text += '[evaluation]\nfrom = 40\n[users]\nfile = "people.csv"\nid = "id"\ntime = "at"\n[users.features]\ncity = "city"\n'
    catalogue = _open(write_items(tmp_path, text, id=[1]))
    assert [(u.user_id, u.features["city"], u.time_ms) for u in catalogue.users()] == [(1, "new", 20_001), (4, "last", 20_001)]
    assert {u.user_id: u.features.get("city") for u in catalogue.evaluation().users} == {1: "new", 2: None, 3: None, 4: "last"}
    assert [r.reason for r in catalogue.rejections.named] == ["no usable time: column 'at' is 'yesterday'"]
    assert all(u.time_ms is None for u in _open(write_items(tmp_path, text.replace('"id"\ntime = "at"', '"id"'), id=[1])).users())


def test_a_missing_cell_leaves_the_feature_out(text_shop: MeasuredCatalogue, number_shop: MeasuredCatalogue) -> None:
    without = [u for u in text_shop.items() if u.item_id == "sku-003/ä"]
    assert without and all("price" not in u.features for u in without)


def test_counts_are_as_of_the_version(text_shop: MeasuredCatalogue) -> None:
    positives = text_shop.sources.positives
    updates = list(text_shop.items())
    assert len(updates) > TEXT_ITEMS
    for update in updates[::7]:
        mine = np.array([positives.item_ids[i] == update.item_id for i in positives.item_X])
        inside = (positives.time_X < update.version) & (positives.time_X >= update.version - 7 * DAY_MS)
        assert update.features["sold_7"] == (mine & inside).sum()


@pytest.mark.parametrize("step_ms", [DAY_MS // 60, DAY_MS // 2])  # a log of six days, and of 180
def test_items_are_known_at_every_request_as_of_its_very_time(tmp_path: Path, step_ms: int) -> None:
    log = "".join(f"{n % 7},{n % 12},{START_MS + n * step_ms}\n" for n in range(360))
    items = "".join(f"{n}\n" for n in range(12))
    catalogue = open_shop(tmp_path, PLAIN_MAPPING + "[impressions]\nmoments = 0\n", items="item\n" + items, log="user,item,at\n" + log)
    told = list(catalogue.items())
    requests = list(catalogue.impressions())
    assert len({request.time_ms for request in requests}) > 3
    for request in requests:
        for shown in request.items:
            known = [u.features["taken"] for u in told if u.item_id == shown.item_id and u.version <= request.time_ms]
            assert known, "the item as of the request"
            times = [START_MS + n * step_ms for n in range(360) if n % 12 == shown.item_id]
            assert known[-1] == sum(time < request.time_ms for time in times)


def test_items_listed_after_the_evaluation_are_arrivals(text_shop: MeasuredCatalogue) -> None:
    told = {u.item_id for u in text_shop.items()}
    assert told == {f"sku-{i:03d}/ä" for i in range(36)} and text_shop.item_count == 36
    arrivals = list(text_shop.arrivals(6, 0))
    assert [u.item_id for u, _ in arrivals][:4] == [f"sku-{i:03d}/ä" for i in range(36, 40)]
    ids = {u.item_id for u, _ in arrivals}
    assert len(ids) == 6 and not ids & told
    assert all(new is not None and new.item_id == u.item_id and len(new.embedding) == WIDTH for u, new in arrivals)
    assert not ids & {u.item_id for u, _ in text_shop.arrivals(6, 1)}


def test_changes_move_a_price_and_come_later(shop: Path) -> None:
    catalogue = _open(shop)
    latest = {u.item_id: u for u in catalogue.items()}
    name = catalogue.schema.bid or "price"
    for seed in (1, 2):
        for change in catalogue.price_changes(30, seed):
            before = latest[change.item_id]
            assert change.version > before.version
            assert change.features[name] != before.features.get(name)
    assert max(c.version for c in catalogue.price_changes(30, 1)) < min(c.version for c in catalogue.price_changes(30, 2))


def test_without_embeddings_each_item_has_a_mark_of_its_own(tmp_path: Path) -> None:
    catalogue = open_items(tmp_path, id=[7, 8, 9])
    marks = {item.item_id: item.embedding for item in catalogue.new_items()}
    assert catalogue.schema.multimodal == "item_mark" and len({tuple(mark) for mark in marks.values()}) == len(marks) == 3
    assert {item.item_id: item.embedding for item in open_items(tmp_path, id=[9, 1]).new_items()}[9] == marks[9]
    with pytest.raises(Misconfigured, match=r"needs a section \[embeddings\]"):
        _ = list(open_items(tmp_path, "[items.features]\ngroup = { clusters = 2 }\n", id=[7]).items())


def test_what_a_mapping_says_of_training_comes_before_what_suits_mapped_data(tmp_path: Path) -> None:
    own = "[train]\nseconds = 3\nlearning_rate = 0.01\n"
    usual, chosen = (open_items(tmp_path, one, id=[1]).train for one in ("", own))
    assert usual == FOR_MAPPED_DATA
    assert chosen == dataclasses.replace(FOR_MAPPED_DATA, passes=0, seconds=3.0, learning_rate=0.01)


def test_changes_are_such_that_a_score_can_tell(tmp_path: Path) -> None:
    text = '[items.features]\nbid = "cpc"\nsort = "sort"\n[model]\nrank_by = "click"\n'
    columns = {"id": [1, 2, 3], "cpc": [1, 2, 3], "sort": ["a", "b", "b"]}
    for mapping_text in (text, text.replace('bid = "cpc"\n', "")):
        catalogue = open_items(tmp_path, mapping_text, **columns)
        before = {u.item_id: u.features["sort"] for u in catalogue.items()}
        changes = list(catalogue.price_changes(20, 1))
        assert changes and all(c.features["sort"] != before[c.item_id] for c in changes)
    few_buckets = text.replace('sort = "sort"', 'sort = { column = "sort", kind = "categorical", buckets = 4 }')
    catalogue = open_items(tmp_path, few_buckets, id=list(range(12)), cpc=[1] * 12, sort=[f"s{n}" for n in range(12)])
    bucket, sorts = catalogue.schema.item("sort").encode_one, {u.item_id: u.features["sort"] for u in catalogue.items()}
    assert all(bucket(c.features["sort"]) != bucket(sorts[c.item_id]) for c in catalogue.price_changes(20, 1)), "of one bucket is no change"
    assert not list(open_items(tmp_path, **columns).price_changes(20, 1))


def test_list_embeddings_milliseconds_and_shown_requests_are_read(number_shop: MeasuredCatalogue) -> None:
    schema = number_shop.schema
    assert schema.id_kind is IdKind.INT64 and schema.mm_width == NUMBER_WIDTH
    told = [f for f in schema.of(Scope.ITEM) if f.name not in ("rate_click", "shown", "shown_1d", "shown_7d")]
    assert [f.kind for f in told] == [CATEGORICAL, NUMERIC, BAG, EMBEDDING]
    assert len(told) + 4 == len(schema.of(Scope.ITEM)), "rates and counts of what was shown are there by default"
    assert schema.item("bid").default == pytest.approx(0.1 * 31, abs=0.11) and number_shop.model["rank_by"] == "click * shown * bid"
    assert len(list(number_shop.new_items())) == NUMBER_ITEMS - 1
    records = list(number_shop.impressions())
    assert 200 < len(records) < 300
    assert all(START_MS <= r.time_ms < START_MS + 40 * DAY_MS and len(r.items) == 8 for r in records)
    assert all("hour" in r.context for r in records)
    clicked = [(r.user_id, s.item_id, r.time_ms) for r in records for s in r.items if s.clicked]
    told = [(b.user_id, b.item_id, b.time_ms) for b in number_shop.behaviours()]
    assert sorted(clicked) == sorted(told), "what was clicked is the history where there is no other"


def test_a_shown_item_without_a_bid_of_its_own_has_the_items(number_shop: MeasuredCatalogue) -> None:
    bids = {u.item_id: u.features.get("bid", number_shop.schema.item("bid").default) for u in number_shop.items()}
    for record in number_shop.impressions():
        assert all(s.bid == pytest.approx(bids[s.item_id]) for s in record.items)


def test_held_out_users_have_a_history_and_findable_answers(shop: Path) -> None:
    evaluation = _open(shop).evaluation()
    assert evaluation.users and evaluation.measure == "recall"
    for user in evaluation.users:
        assert user.behaviours and user.relevant
        assert user.relevant <= set(user.candidates.tolist())
        assert user.candidates.tolist() == sorted(set(user.candidates.tolist()))
    assert len(evaluation.popularity_of(evaluation.users[0].candidates)) == len(evaluation.users[0].candidates)


def test_a_period_that_ends_measures_what_is_taken_in_it_and_tells_nothing_of_what_follows(tmp_path: Path) -> None:
    mapping = write_text_shop(tmp_path)
    until_ms = START_MS + 40 * DAY_MS
    told, whole = [], _open(mapping).evaluation()
    for start, until in (("2024-04-05", "2024-04-10"), ("2024-03-29", "2024-04-05")):
        mapping.write_text(mapping.read_text().split("[evaluation]")[0] + f"[evaluation]\nfrom = {start}\nuntil = {until}\n")
        catalogue = _open(mapping)
        told.append((catalogue.evaluation(), list(catalogue.impressions()), list(catalogue.behaviours())))
    log = _open(mapping).sources.positives
    taken = {
        (log.user_ids[u], log.item_ids[i])
        for u, i, t in zip(log.user_X, log.item_X, log.time_X, strict=True)
        if whole.now_ms <= t < until_ms
    }
    first = told[0][0]
    assert {(user.user_id, item) for user in first.users for item in user.relevant} <= taken
    assert sum(len(user.relevant) for user in first.users) < sum(len(user.relevant) for user in whole.users)
    assert max(b.time_ms for b in told[1][2]) < told[1][0].now_ms < told[0][0].now_ms and told[1][1]


def test_properties_in_rows_are_features_each_with_its_own_rows_and_its_part_of_the_cell(tmp_path: Path) -> None:
    text = """
[items]
file = "properties.csv"
id = "item"
popularity = false
[item_history]
file = "properties.csv"
id = "item"
time = "at"
where = 'property in ["group", "790"]'
[item_history.features]
group = { column = "value", where = 'property == "group"', kind = "categorical" }
price = { column = "value", where = 'property == "790"', pattern = '^n([\\d.]+)' }
[behaviours]
file = "log.csv"
user = "user"
item = "item"
time = "at"
[evaluation]
hold_out = false
"""
    day = [START_MS + n * DAY_MS for n in range(9)]
    rows = [
        (day[0], 1, "group", "7"),
        (day[0], 1, "790", "n5.000"),
        (day[0], 2, "790", "n3.000"),
        (day[6], 1, "790", "n6.500"),
        (day[6], 2, "888", "n9 8"),
    ]
    (tmp_path / "properties.csv").write_text("at,item,property,value\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    (tmp_path / "log.csv").write_text("user,item,at\n" + "".join(f"1,{1 + n % 2},{day[n]}\n" for n in range(9)))
    (tmp_path / "m.toml").write_text(text)
    catalogue = _open(tmp_path / "m.toml")
    assert catalogue.schema.item("price").kind is NUMERIC and catalogue.schema.item("group").kind is CATEGORICAL
    told = [(u.item_id, u.features) for u in catalogue.items()]
    assert told == [(1, {}), (2, {}), (1, {"group": "7", "price": 5.0}), (2, {"price": 3.0}), (1, {"group": "7", "price": 6.5})]


def test_a_limit_reads_that_many_rows_of_each_file(shop: Path) -> None:
    catalogue = _open(shop, 10)
    assert len(catalogue.sources.item_rows.ids) == 10
    assert all(len(catalogue.sources.table(source)) <= 10 for source in catalogue.mapping.sources)


def test_what_else_came_of_a_shown_item_is_told_and_a_request_counts_from_its_first_row(tmp_path: Path) -> None:
    rows = ["r,u1,a,1,no,100", "r,u1,b,0,yes,160", "r,u1,a,0,yes,170", "q,u1,c,1,,200", "q,u1,b,0,no,200", "z,u1,a,1,no,300"]
    (tmp_path / "shown.csv").write_text("\n".join(["request,user,item,click,bought,at", *rows]))
    (tmp_path / "items.csv").write_text("id\na\nb\nc\n")
    text = """[items]\nfile = "items.csv"\nid = "id"\n[impressions]\nfile = "shown.csv"\nrequest = "request"\nuser = "user"\nitem = "item"
time = { column = "at", time_unit = "s" }\nclicked = "click"\nposition = { column = "at" }\n[impressions.outcomes]\nbuy = "bought"
[evaluation]\nhold_out = false\n"""
    (tmp_path / "shop.toml").write_text(text)
    catalogue = _open(tmp_path / "shop.toml")
    told = [(r.time_ms, [(s.item_id, s.clicked, s.outcomes) for s in r.items]) for r in catalogue.impressions()]
    assert told[0] == (100_000, [("a", True, ["buy"]), ("b", False, ["buy"])])
    assert told[1] == (200_000, [("c", True, []), ("b", False, [])]) and catalogue.model["tasks"] == ("click", "buy", "shown")
    assert [r.reason for r in catalogue.rejections.named] == ["no usable flag, taken as false: column 'bought' is empty"]
    (tmp_path / "shop.toml").write_text(text + '[model]\ntasks = ["click", "pay"]\n')
    with pytest.raises(Misconfigured, match=r"\[model\] tasks names 'pay', which no column of \[impressions\.outcomes\] has"):
        _ = _open(tmp_path / "shop.toml").model
    (tmp_path / "shop.toml").write_text(text.replace("bought", "item"))
    with pytest.raises(Misconfigured, match=r"outcomes\.buy: no cell of its column is a flag, the first is 'a'.*like buy = "):
        list(_open(tmp_path / "shop.toml").impressions())
