"""The page of metrics: one at a time, once for all who wait for it, and as Prometheus reads it."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from popwheel_common.exposition import OPEN_METRICS, PLAIN, SlicedCollector, filled, preferred
from popwheel_common.web.metrics_page import MetricsPage
from tests.harness.collector import collector_of_servers
from tests.harness.loop_turns import TURN_S_MAX, measured_turns

VALUES = (0.0, 1e300, -2.5, float("inf"), float("-inf"))


class Many(SlicedCollector):
    """Five families of some series.

    Args:
        rows: of each.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.collected = 0

    def families(self, *, pairs: bool) -> Iterator[Metric | None]:
        self.collected += 1
        for number in range(5):
            family = GaugeMetricFamily(f"many_{number}", "Many.", labels=("topic", "group"))
            yield from filled(family, (((f"t{row}", "g"), row) for row in range(self._rows)))


def registry_of_all_kinds() -> CollectorRegistry:
    registry = CollectorRegistry()
    text = 'Counts "these", \\ and\nthose'
    Counter("calls", text, ["code"], registry=registry).labels('a"b\\c\nd').inc(3)
    gauge = Gauge("level", "A level", ["at"], registry=registry)
    for number, value in enumerate(VALUES):
        gauge.labels(str(number)).set(value)
    Histogram("took_seconds", "How long it took", registry=registry).observe(0.3)
    return registry


@pytest.mark.parametrize("content_type", [PLAIN, OPEN_METRICS])
async def test_what_is_written_is_read_as_it_was_meant(content_type: str) -> None:
    registry = registry_of_all_kinds()
    page = (await MetricsPage(registry).text(content_type, pairs=False)).decode()
    parse = text_string_to_metric_families if content_type == PLAIN else open_metrics_families
    read = {
        (sample.name, tuple(sorted(sample.labels.items()))): (sample.value, family.type, family.documentation)
        for family in parse(page)
        for sample in family.samples
    }
    meant = {
        (sample.name, tuple(sorted(sample.labels.items()))): (sample.value, family.type, family.documentation)
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert read == meant


async def test_a_renamed_family_has_its_old_name_too() -> None:
    registry = CollectorRegistry()
    Gauge("popwheel_pop_open_deliveries", "Open.", ["at"], registry=registry).labels("here").set(7)
    page = (await MetricsPage(registry).text(PLAIN, pairs=False)).decode()
    found = {family.name: family for family in text_string_to_metric_families(page)}
    new, old = found["popwheel_pop_open_deliveries"], found["popwheel_pop_open_check_points"]
    assert [(each.labels, each.value) for each in old.samples] == [(each.labels, each.value) for each in new.samples]
    assert old.documentation == "Old name of popwheel_pop_open_deliveries."


def test_the_form_is_what_the_client_prefers() -> None:
    assert preferred("") == preferred("*/*") == preferred("text/html,text/plain;version=0.0.4") == PLAIN
    assert preferred("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.5") == OPEN_METRICS


async def test_fifty_thousand_series_take_short_turns() -> None:
    registry = CollectorRegistry()
    registry.register(Many(10_000))
    page = MetricsPage(registry)
    with collector_of_servers(), measured_turns() as turns:
        await asyncio.sleep(0)
        text = await page.text(PLAIN, pairs=True)
        await asyncio.sleep(0)
    assert text.count(b"\n") == 5 * (10_000 + 2)
    assert turns.longest_s < TURN_S_MAX, str(turns)


async def test_a_long_page_of_a_worker_takes_short_turns() -> None:
    text = "".join(
        f"# HELP many_{number} Many.\n# TYPE many_{number} gauge\n"
        + "".join(f'many_{number}{{topic="t{row}"}} {row}\n' for row in range(5_000))
        for number in range(5)
    )

    async def read(pairs: bool) -> dict[str, str]:
        return {"0": text, "1": text}

    page = MetricsPage(CollectorRegistry(), read)
    with collector_of_servers(), measured_turns() as turns:
        await asyncio.sleep(0)
        merged = await page.text(PLAIN, pairs=True)
        await asyncio.sleep(0)
    assert merged.count(b"\n") == 5 * (10_000 + 2)
    assert b'many_3{topic="t9",worker="1"} 9\n' in merged
    assert turns.longest_s < TURN_S_MAX, str(turns)


async def test_all_who_ask_while_a_page_is_made_get_the_next_one() -> None:
    registry, many = CollectorRegistry(), Many(500)
    registry.register(many)
    many.collected = 0
    page = MetricsPage(registry)
    texts = await asyncio.gather(*(page.text(PLAIN, pairs=False) for _ in range(50)))
    assert many.collected == 1
    first = asyncio.create_task(page.text(PLAIN, pairs=False))
    while many.collected == 1:
        await asyncio.sleep(0)
    later = await asyncio.gather(*(page.text(PLAIN, pairs=False) for _ in range(50)))
    assert many.collected == 3, "the page that was being made may be older than their question"
    assert len({*texts, *later, await first}) == 1


async def test_who_goes_away_takes_no_page_from_others() -> None:
    registry = CollectorRegistry()
    registry.register(Many(500))
    page = MetricsPage(registry)
    gone, stays = (asyncio.create_task(page.text(PLAIN, pairs=False)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays
    assert gone.cancelled()


async def test_a_collector_that_fails_fails_this_page_alone() -> None:
    class Failing(SlicedCollector):
        fails = True

        def families(self, *, pairs: bool) -> Iterator[Metric | None]:
            if self.fails and pairs:
                raise ValueError("not now")
            yield CounterMetricFamily("good", "Good", 1)

    registry = CollectorRegistry(auto_describe=False)
    failing = Failing()
    failing.fails = False
    registry.register(failing)
    failing.fails = True
    page = MetricsPage(registry)
    with pytest.raises(ValueError, match="not now"):
        await page.text(PLAIN, pairs=True)
    assert b"good_total 1" in await page.text(PLAIN, pairs=False)
