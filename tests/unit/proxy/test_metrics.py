"""What the proxy counts by topic and group, when these are deleted."""

from popwheel_common.series import OTHER, SERIES_MAX
from tests.unit.proxy.world import World, message, poll_request, until, world

LABELS = {"topic": "orders", "consumer_group": "group"}
COUNTS = ("is_long_polling_total", "is_short_polling_hit_total")


def shown(w: World) -> list[float | None]:
    return [w.registry.get_sample_value(name, LABELS) for name in COUNTS]


async def use(w: World) -> None:
    """Poll once and find a message at once."""
    await w.send(message())
    await w.receive(poll_request())


async def test_the_counts_of_a_deleted_topic_are_dropped() -> None:
    async with world() as w:
        await use(w)
        assert shown(w) == [1, 1]
        w.controller.delete_topic("orders")
        await until(lambda: "orders" not in w.app.view.topics)
        assert shown(w) == [None, None]


async def test_the_counts_of_a_deleted_group_are_dropped_and_begin_anew() -> None:
    async with world() as w:
        await use(w)
        await use(w)
        assert shown(w) == [2, 2]
        w.controller.delete_group("group")
        await until(lambda: "group" not in w.app.view.groups)
        assert shown(w) == [None, None]
        await use(w)
        await until(lambda: "group" in w.app.view.groups)
        assert shown(w) == [1, 1]


async def test_what_a_poll_counts_after_the_deletion_is_not_shown() -> None:
    async with world() as w:
        await use(w)
        w.controller.delete_topic("orders")
        await until(lambda: "orders" not in w.app.view.topics)
        w.app.poll_metrics.short_polling_hits.inc("orders", "group")
        assert shown(w) == [None, None]


async def test_made_up_names_make_no_more_series_than_allowed() -> None:
    async with world() as w:
        w.app.poll_metrics.long_polls.known = lambda topic, group: True
        for number in range(SERIES_MAX + 5):
            w.app.poll_metrics.long_polls.inc("orders", f"group-{number}")
        others = {"topic": OTHER, "consumer_group": OTHER}
        assert w.registry.get_sample_value("is_long_polling_total", others) == 5
