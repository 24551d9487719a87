"""A tiny shop for tests of training: four items, two users, three impressions, times in milliseconds."""

from infra.kafka.admin import apply_topics
from infra.kafka.publisher import Publisher
from schemas.events import Behaviour, ImpressionRecord, ItemFeaturesUpdate, NewItem, ShownItem, UserFeaturesRecord
from schemas.ids import Id, IdKind
from schemas.model.spec import ModelSpec
from streams.training.impressions import Events
from streams.training.topic_events import TopicEvents
from tests.schemas.catalogue import small_spec


def item(number: int, kind: IdKind) -> Id:
    return number if kind is IdKind.INT64 else f"sku-{number}"


def shown(kind: IdKind, *items: tuple[int, bool]) -> list[ShownItem]:
    return [ShownItem(item_id=item(n, kind), position=p, bid=1.0 + n, clicked=clicked) for p, (n, clicked) in enumerate(items)]


def shop(kind: IdKind = IdKind.INT64) -> tuple[ModelSpec, Events]:
    """Item 1 changes its price at 100 and 200; item 9 is shown and unknown; user 2 has no profile and no history."""
    updates = [
        ItemFeaturesUpdate(item_id=item(n, kind), version=0, features={"category": n, "price": 1.0 + n, "stock": n}) for n in range(4)
    ]
    updates += [
        ItemFeaturesUpdate(item_id=item(1, kind), version=at, features={"category": 1, "price": price, "stock": 5})
        for at, price in ((200, 30.0), (100, 20.0))
    ]
    return small_spec(kind), Events(
        items=updates,
        new_items=[NewItem(item_id=item(n, kind), embedding=[float(n == k) + 0.1 for k in range(16)]) for n in range(3)],
        users=[UserFeaturesRecord(user_id=item(1, kind), features={"country": "UK"})],
        behaviours=[
            Behaviour(user_id=item(1, kind), item_id=item(n, kind), time_ms=at) for n, at in ((0, 50), (1, 120), (2, 150), (9, 180))
        ],
        impressions=[
            ImpressionRecord(
                request_id="a", user_id=item(1, kind), time_ms=150, context={"hour": 3}, items=shown(kind, (1, True), (0, False))
            ),
            ImpressionRecord(request_id="b", user_id=item(1, kind), time_ms=300, items=shown(kind, (3, False), (1, True), (9, False))),
            ImpressionRecord(request_id="c", user_id=item(2, kind), time_ms=100, items=shown(kind, (2, True))),
            ImpressionRecord(request_id="d", user_id=item(2, kind), time_ms=100, items=shown(kind, (9, True))),
        ],
    )


def open_log(bootstrap: str, prefix: str, kind: IdKind = IdKind.INT64) -> TopicEvents:
    """New topics of two shards and two user partitions."""
    apply_topics(bootstrap, prefix, 2, 2)
    return TopicEvents(bootstrap, prefix, 2, 2, kind)


def publish_shop(bootstrap: str, prefix: str, kind: IdKind) -> None:
    """Every event of the shop."""
    publish(bootstrap, prefix, shop(kind)[1], kind)


def publish(bootstrap: str, prefix: str, events: Events, kind: IdKind = IdKind.INT64) -> None:
    """Everything in log order into topics of two shards and two user partitions, impressions last."""
    with Publisher(bootstrap, prefix, "test", 2, 2, kind) as publisher:
        publisher.publish_items(events.items)
        publisher.publish_new_items(events.new_items)
        publisher.publish_users(events.users)
        publisher.publish_behaviours(events.behaviours)
        publisher.flush()
        publisher.publish_impressions(events.impressions)
