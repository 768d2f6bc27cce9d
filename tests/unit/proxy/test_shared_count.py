"""The cluster's count: taken when it is there, left alone when its store is away, slow, emptied or talks nonsense."""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from popwheel_proxy.receive.long_poll import Mode
from popwheel_proxy.receive.mode_choice import WINDOW_S, Key, ModeChoice
from popwheel_proxy.receive.redis_counts import RedisCounts
from popwheel_proxy.receive.shared_count import TIMEOUT_S, CountStoreError, SharedCount, Sums
from tests.unit.proxy.virtual import LoopClock, now, run
from tests.unit.proxy.world import poll_request, until, world

KEY = ("orders", "group")
UP = "popwheel_proxy_shared_count_up"
FAILURES = "popwheel_proxy_shared_count_failures_total"


class FakeStore:
    """Adds up what proxies tell it, until asked to be otherwise."""

    def __init__(self) -> None:
        self.others_per_s = 0.0
        self.generation = "1"
        self.error: CountStoreError | None = None
        self.stuck = False
        self.reported: list[Mapping[Key, int]] = []
        self.closed = False

    async def exchange(self, counts: Mapping[Key, int]) -> Sums:
        self.reported.append(counts)
        if self.error is not None:
            raise self.error
        if self.stuck:
            await asyncio.Event().wait()
        return Sums({key: count + self.others_per_s for key, count in counts.items()}, self.generation)

    async def close(self) -> None:
        self.closed = True


class Subject:
    """A count that is shared, and what one sees of it."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.registry = CollectorRegistry()
        self.clock = LoopClock()
        self.adaptive = ModeChoice(None, 100, 50, 0.0, now())
        self.shared = SharedCount(self.store, self.adaptive, self.clock, self.registry)

    async def mode(self) -> Mode:
        """The mode after one exchange."""
        self.adaptive.count(*KEY)
        await self.shared.exchange()
        self.adaptive.time_passed(self.clock.monotonic())
        return dict(self.adaptive.modes)[KEY]

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


def away(store: FakeStore) -> None:
    store.error = CountStoreError("away")


def slow(store: FakeStore) -> None:
    store.stuck = True


def well(store: FakeStore) -> None:
    store.error, store.stuck = None, False


def test_the_polls_of_others_count() -> None:
    async def body() -> None:
        subject = Subject()
        assert await subject.mode() is Mode.NOTIFY
        subject.store.others_per_s = 200
        assert await subject.mode() is Mode.PLAIN
        assert subject.metric(UP) == 1
        assert subject.store.reported == [{KEY: 1}, {KEY: 1}]

    run(body())


@pytest.mark.parametrize("trouble", [away, slow])
def test_without_its_store_a_proxy_goes_by_its_own_count_and_comes_back(trouble: Callable[[FakeStore], None]) -> None:
    async def body() -> None:
        subject = Subject()
        subject.store.others_per_s = 200
        assert await subject.mode() is Mode.PLAIN
        trouble(subject.store)
        with capture_logs() as logs:
            began = now()
            assert await subject.mode() is Mode.NOTIFY
            assert await subject.mode() is Mode.NOTIFY
            assert now() - began <= 2 * TIMEOUT_S + 0.01
        assert [log["log_level"] for log in logs] == ["warning"]
        assert (subject.metric(UP), subject.metric(FAILURES)) == (0, 2)
        well(subject.store)
        with capture_logs() as logs:
            assert await subject.mode() is Mode.PLAIN
        assert [log["log_level"] for log in logs] == ["info"]
        assert subject.metric(UP) == 1

    run(body())


def test_a_store_that_was_emptied_is_not_believed_for_one_window() -> None:
    async def body() -> None:
        subject = Subject()
        subject.store.others_per_s = 200
        assert await subject.mode() is Mode.PLAIN
        subject.store.generation = "2"
        assert await subject.mode() is Mode.NOTIFY
        assert subject.metric(UP) == 0
        subject.clock.shift_s += WINDOW_S
        assert await subject.mode() is Mode.PLAIN
        assert subject.metric(UP) == 1

    run(body())


def test_a_proxy_exchanges_once_per_second_and_lets_go_of_the_store_in_the_end() -> None:
    async def body() -> None:
        store = FakeStore()
        async with world(clock=LoopClock(), count_store=store) as w:
            await asyncio.sleep(10)
            assert 9 <= len(store.reported) <= 10
            for _ in range(5):
                await w.receive(poll_request(wait_s=0))
            await until(lambda: store.reported[-1] == {KEY: 5})
            slow(store)
            began = now()
            await w.receive(poll_request(wait_s=0))
            assert now() - began < 0.01
        assert store.closed

    run(body())


class FakePipeline:
    """Answers as it is told."""

    def __init__(self, answers: list[object]) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **more: None

    async def execute(self) -> list[object]:
        return self._answers


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [True, "1", "no time", 1, 1, ["1"], ["2"]],
        [True, "1", (1, 2), 1, 1, ["one"], ["2"]],
        [True, "1", (1, 2), 1, 1, [], ["2"]],
        [True, "1", (1, 2), 1, 1, None, None],
        [True, "1", (1, 2), 1, 1, [{}], [[1]]],
    ],
)
async def test_nonsense_from_redis_is_an_error_of_the_store(
    answers: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = RedisCounts("redis://127.0.0.1:1/0", LoopClock(), random.Random(1))
    monkeypatch.setattr(counts._client, "pipeline", lambda transaction: FakePipeline(answers))
    with pytest.raises(CountStoreError):
        await counts.exchange({KEY: 1})
    await counts.close()


async def test_negative_counts_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = RedisCounts("redis://127.0.0.1:1/0", LoopClock(), random.Random(1))
    answers = [True, "1", (1, 2), 1, 1, ["-5"], ["-7"]]
    monkeypatch.setattr(counts._client, "pipeline", lambda transaction: FakePipeline(answers))
    assert (await counts.exchange({KEY: 1})).per_s == {KEY: 0.0}
    await counts.close()


async def test_bytes_of_redis_that_are_no_text_are_an_error_of_the_store() -> None:
    hung_up = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a client may hang up before it has read all
            while await reader.read(4096):
                writer.write(b"$1\r\n\xff\r\n" * 20)
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    counts = RedisCounts(f"redis://127.0.0.1:{port}/0", LoopClock(), random.Random(1))
    with pytest.raises(CountStoreError):
        await counts.exchange({KEY: 1})
    await counts.close()
    await hung_up.wait()
    server.close()


async def test_no_redis_there_is_an_error_of_the_store() -> None:
    counts = RedisCounts("redis://127.0.0.1:1/0", LoopClock(), random.Random(1))
    with pytest.raises(CountStoreError):
        await counts.exchange({KEY: 1})
    await counts.close()
