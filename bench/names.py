"""Very many topics and groups: what making them, one change among them, a new watcher and a restart cost.

Controller, broker and proxy are as in production and talk over sockets; they share this process, and each turn of the
loop is sent to the one that caused it. `python -m bench.names --topics 100000 --groups 10000 --store file`.
"""

import argparse
import asyncio
import gc
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import httpx
from prometheus_client import CollectorRegistry

from bench.steps import Figures
from popwheel_broker.app import BrokerApp
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_cli.process.garbage_collection import GarbageCollection
from popwheel_cli.process.listeners import CHANNEL_LIMITS, CONTROLLER_LIMITS, INTERNAL_LIMITS, grpc_server, listen
from popwheel_common.clock import SystemClock
from popwheel_common.http import make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import EnsureGroupRequest, EnsureTopicRequest, TopicType
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerAddresses, ControllerApp
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.options import ControllerOptions, ReplicationOptions
from popwheel_controller.store.state_store import StateStore
from popwheel_proxy.app import ProxyApp, ProxyChannels
from popwheel_proxy.options import ProxyOptions
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.methods import ENSURE_GROUP, ENSURE_TOPIC
from popwheel_rpc.service import Channel
from tests.unit.controller.memory_api import MemoryApi

Result = TypeVar("Result")

_CALLERS = 512
_SINGLE = 50
_ROLE: ContextVar[str] = ContextVar("role", default="bench")
_CLOCK = SystemClock()


class Steps:
    """The longest step of the loop for each role, in milliseconds of its own CPU time. What the garbage collector takes
    is apart, as here it goes through what all of them have, and so is what a broker's checkpoint takes.
    """

    def __init__(self) -> None:
        self.longest: dict[str, float] = defaultdict(float)
        run = asyncio.Handle._run

        collecting_ms = began_s = 0.0

        def collected(phase: str, info: dict[str, int]) -> None:
            nonlocal collecting_ms, began_s
            if phase == "start":
                began_s = time.thread_time()
            else:
                collecting_ms += (time.thread_time() - began_s) * 1000

        def metered(handle: Any) -> None:
            nonlocal collecting_ms
            collecting_ms = 0.0
            began = time.thread_time()
            run(handle)
            took_ms = (time.thread_time() - began) * 1000 - collecting_ms
            task = getattr(handle._callback, "__self__", None)
            role = handle._context.get(_ROLE, "bench")
            if isinstance(task, asyncio.Task) and task.get_name() == "broker-checkpoint":
                role = "broker_checkpoint"
            self.longest[role] = max(self.longest[role], took_ms)
            self.longest["collector"] = max(self.longest["collector"], collecting_ms)

        gc.callbacks.append(collected)
        setattr(asyncio.Handle, "_run", metered)  # noqa: B010 - nothing else sees every step

    def take(self) -> Figures:
        """Return the counts since the last call."""
        seen = {f"{role}_step_ms": round(ms, 1) for role, ms in self.longest.items() if role != "bench"}
        self.longest.clear()
        return seen


class Written:
    """Documents as they reach the store.

    Args:
        store: where they go.
    """

    def __init__(self, store: StateStore) -> None:
        self._write = store.write
        self.bytes = self.documents = self.largest = 0
        setattr(store, "write", self.write)  # noqa: B010 - it stands before the store's own

    async def write(self, name: str, document: Mapping[str, Any], expected: str | None) -> str:
        """Count it, and write it."""
        token = _ROLE.set("bench")  # what it takes to count is nobody's
        size = len(json.dumps(document, separators=(",", ":")))
        _ROLE.reset(token)
        self.bytes, self.documents, self.largest = self.bytes + size, self.documents + 1, max(self.largest, size)
        return await self._write(name, document, expected)


@contextmanager
def as_role(role: str) -> Iterator[None]:
    """Count tasks that begin in this block for a role."""
    token = _ROLE.set(role)
    try:
        yield
    finally:
        _ROLE.reset(token)


class Bench:
    """A controller on a store, and who follows it.

    Args:
        folder: for files.
        shared: makes the store; None for the controller's own.
        names: limit of topics and groups.
    """

    def __init__(self, folder: Path, shared: Callable[[], StateStore | None], names: int) -> None:
        self._folder, self._shared = folder, shared
        replication = ReplicationOptions(lease_ms=20_000)  # this process is busy with others' work, too
        self._options = ControllerOptions(topics_max=2 * names, groups_max=names, replication=replication)
        self.steps = Steps()
        self.port = 0

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[tuple[ControllerApp, Written]]:
        """A controller that serves, always at the same port."""
        with as_role("controller"):
            app = ControllerApp(
                Runtime(_CLOCK, random.Random(1), CollectorRegistry()),
                self._options,
                self._folder,
                lambda info: connect(info.address, limits=CHANNEL_LIMITS),
                shared=self._shared(),
                addresses=ControllerAddresses("bench"),
            )
            written = Written(app._store)
            await app.start()
            server = grpc_server(app.service, "bench", CONTROLLER_LIMITS, CollectorRegistry())
            await listen(server, "127.0.0.1", self.port, "controller.grpc_port")
        self.port = server.port
        try:
            yield app, written
        finally:
            await app.stop()
            await server.stop(1)

    def channel(self) -> Channel:
        """A way to the controller."""
        return connect(f"127.0.0.1:{self.port}", limits=CHANNEL_LIMITS)

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[BrokerApp]:
        """A broker that leads its group."""
        async with AsyncExitStack() as stack:
            with as_role("broker"):
                controller = self.channel()
                stack.push_async_callback(controller.close)
                app = BrokerApp(
                    Runtime(_CLOCK, random.Random(2), CollectorRegistry()),
                    BrokerOptions(),
                    self._folder / "broker",
                    BrokerChannels(controller),
                )
                await app.start()
                stack.push_async_callback(app.stop)
                server = grpc_server(app.service, "bench", INTERNAL_LIMITS, CollectorRegistry())
                await listen(server, "127.0.0.1", 0, "broker.grpc_port")
                stack.push_async_callback(server.stop, 1)
                registrar = app.registrar(f"127.0.0.1:{server.port}")
                await registrar.start()
                stack.push_async_callback(registrar.stop)
                await app.roles.until_leads()
            yield app

    @asynccontextmanager
    async def proxy(self) -> AsyncIterator[ProxyApp]:
        """A proxy that knows the cluster."""
        with as_role("proxy"):
            controller = self.channel()
            app = ProxyApp(
                Runtime(_CLOCK, random.Random(3), CollectorRegistry()),
                ProxyOptions(),
                ProxyChannels(controller, lambda info: connect(info.address, limits=CHANNEL_LIMITS)),
            )
            await app.start()
            await app._controller_watch.wait_ready()
        try:
            yield app
        finally:
            await app.stop()
            await controller.close()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something."""
    while not holds():
        await asyncio.sleep(0.001)


async def timed(work: Awaitable[Result]) -> tuple[float, Result]:
    """Return the seconds that something takes."""
    began = time.perf_counter()
    result = await work
    return time.perf_counter() - began, result


async def make(channel: Channel, topics: int, groups: int) -> None:
    """Make them as proxies do on first use, many at a time, their names in no order."""
    numbers = [*range(topics + groups)]
    random.Random(4).shuffle(numbers)
    left = iter(numbers)

    async def caller() -> None:
        for number in left:
            if number < topics:
                await channel.call(ENSURE_TOPIC, EnsureTopicRequest(name=f"topic-{number:06}", type=TopicType.MIXED))
            else:
                await channel.call(ENSURE_GROUP, EnsureGroupRequest(name=f"group-{number:06}"))

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))


async def _measure(bench: Bench, topics: int, groups: int) -> dict[str, Figures]:
    figures: dict[str, Figures] = {}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        controller, written = await first.enter_async_context(bench.controller())
        broker = await stack.enter_async_context(bench.broker())
        proxy = await stack.enter_async_context(bench.proxy())
        views = [broker.view, proxy.view]
        channel = bench.channel()

        def all_know() -> bool:
            same = all(view.named == controller.state.named for view in views)
            return same and len(broker.core.topic_registry.topic_ids) == len(controller.state.topics)

        bench.steps.take()
        seconds, _ = await timed(make(channel, topics, groups))
        behind_s, _ = await timed(until(all_know))
        figures["make"] = {
            "seconds": seconds,
            "all_know_after_s": behind_s,
            "documents": written.documents,
            "bytes_per_change": written.bytes / (topics + groups),
            "largest_document": written.largest,
            **bench.steps.take(),
        }
        bench.steps.take()
        written.bytes = written.largest = written.documents = 0
        seconds = 0.0
        for number in range(_SINGLE):
            request = EnsureTopicRequest(name=f"topic-{number}-new", type=TopicType.MIXED)
            seconds += (await timed(channel.call(ENSURE_TOPIC, request)))[0]
            await until(all_know)
        figures["one topic"] = {
            "ms": seconds / _SINGLE * 1000,
            "bytes_per_change": written.bytes / _SINGLE,
            "largest_document": written.largest,
            **bench.steps.take(),
        }
        api = make_http_app("bench", "0", CollectorRegistry(), {}, [controller.admin])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://bench/api/v1") as http:
            with as_role("controller"):
                await asyncio.create_task(http.get("/topics?limit=1"))
                bench.steps.take()
                task = asyncio.create_task(http.get("/topics?limit=1000&after=topic-05"))
            answer = await task
        figures["admin page"] = {"bytes": len(answer.content), "total": answer.json()["total"], **bench.steps.take()}
        seconds, another = await timed(stack.enter_async_context(bench.proxy()))
        await until(lambda: len(another.view.topics) == len(controller.state.topics))
        figures["a proxy comes"] = {"seconds": seconds, **bench.steps.take()}
        await first.aclose()
        bench.steps.take()
        began = time.perf_counter()
        controller, written = await stack.enter_async_context(bench.controller())
        served_s = time.perf_counter() - began
        views.append(another.view)
        request = EnsureTopicRequest(name="after-the-restart", type=TopicType.MIXED)
        seconds, _ = await timed(channel.call(ENSURE_TOPIC, request))
        await until(all_know)
        figures["controller restarts"] = {
            "serves_after_s": served_s,
            "all_know_after_s": time.perf_counter() - began,
            "first_change_ms": seconds * 1000,
            **bench.steps.take(),
        }
        await channel.close()
    return figures


def main() -> None:
    """Measure in this process, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.names", description=__doc__)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--store", choices=("file", "kubernetes"), default="file", help="kubernetes: its API in memory")
    options = parser.parse_args()
    GarbageCollection.freeze_loaded()  # as the services do
    with tempfile.TemporaryDirectory(prefix="popwheel-bench-") as scratch:
        api = MemoryApi()
        shared = (lambda: None) if options.store == "file" else lambda: KubernetesStateStore(api, "popwheel")
        bench = Bench(Path(scratch), shared, options.topics + options.groups)
        figures = asyncio.run(_measure(bench, options.topics, options.groups))
    for name, values in figures.items():
        print(
            json.dumps(
                {"what": name, "store": options.store, **{key: round(value, 2) for key, value in values.items()}}
            )
        )


if __name__ == "__main__":
    main()
