"""The simulated network by itself: calls and streams between processes, and what bad ways and dead ends do to them."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from popwheel_rpc.service import RAW, Call, Method, Service, Stream, StreamClosedError
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.sim.cluster.connection import Connection
from tests.sim.cluster.network import KEEPALIVE_S, Network, SimChannel
from tests.sim.loop import SimLoop
from tests.sim.process import MachineClock, Process

ECHO = Method("test.Test", "Echo", RAW, RAW)
TALK = Method("test.Test", "Talk", RAW, RAW)


class Two:
    """A client and a server; the server answers what it is asked after as many seconds as are asked for."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.network = Network(self.loop, random.Random(1), (0.001, 0.002))
        self.client = Process(self.loop, 1, MachineClock(self.loop), "client")
        self.learned: list[bytes] = []
        self.ended: list[str] = []
        self.channel = self.network.channel(self.client, "server:0")
        self.serve()

    def serve(self) -> None:
        """Begin (another life of) the server."""
        self.server = Process(self.loop, 1, MachineClock(self.loop), "server")
        service = Service()
        service.unary(ECHO, self._echo)
        service.stream(TALK, self._talk)
        self.listener = self.network.listen(self.server, "server:0", service)

    def kill(self) -> None:
        """End the server."""
        self.server.alive = False
        self.network.died(self.server)
        self.server.die()

    async def _echo(self, call: Call, request: bytes) -> bytes:
        self.learned.append(request)
        try:
            await asyncio.sleep(float(request))
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return request

    async def _talk(self, call: Call, stream: Stream[bytes, bytes]) -> None:
        try:
            while (message := await stream.receive()) is not None:
                self.learned.append(message)
                await stream.send([message])
        except (StreamClosedError, asyncio.CancelledError):
            self.ended.append("closed")
            raise
        self.ended.append("well")

    def run(self, work: Callable[["Two", SimChannel], Coroutine[Any, Any, None]]) -> None:
        """Do something as the client, and see that nothing failed by the way."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self.client.spawn(work(self, self.channel)))
            assert not self.loop.failures
        finally:
            asyncio.set_event_loop(None)
            self.loop.bury()


async def ask(channel: SimChannel, what: str = "0", timeout_s: float | None = 30.0) -> bytes:
    return await channel.call(ECHO, what.encode(), timeout_s=timeout_s)


async def talk(channel: SimChannel, messages: Sequence[bytes]) -> list[bytes]:
    stream = channel.open(TALK)
    await stream.send(messages)
    await stream.end()
    got = []
    while (message := await stream.receive()) is not None:
        got.append(message)
    return got


def test_calls_and_streams_are_answered() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        assert await ask(channel) == b"0"
        assert await talk(channel, [b"%d" % number for number in range(20)]) == [b"%d" % number for number in range(20)]
        assert two.ended == ["well"]

    Two().run(work)


def test_a_connection_that_is_lost_in_the_moment_it_is_made_is_made_again() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        opened = Connection._open

        def opened_and_lost(connection: Connection) -> None:
            opened(connection)
            connection.client.lose(RpcError(GrpcStatus.UNAVAILABLE, "the other end has given the connection up"))

        with pytest.MonkeyPatch.context() as patch, pytest.raises(NotProcessedError, match="as it was made"):
            patch.setattr(Connection, "_open", opened_and_lost)
            await ask(channel)
        await asyncio.sleep(0.1)
        assert await ask(channel) == b"0"

    Two().run(work)


def test_nobody_listens() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        two.kill()
        with pytest.raises(NotProcessedError, match="nobody listens"):
            await ask(channel)
        two.serve()
        with pytest.raises(NotProcessedError):  # the back-off
            await ask(channel)
        await asyncio.sleep(0.1)
        assert await ask(channel) == b"0"

    Two().run(work)


def test_the_server_dies_with_calls_under_way() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        stream = channel.open(TALK)
        await stream.send([b"a"])
        assert await stream.receive() == b"a"
        two.loop.outside(1.0, two.kill)
        with pytest.raises(RpcError) as failed:
            await ask(channel, "5")
        assert failed.value.status is GrpcStatus.UNAVAILABLE and not isinstance(failed.value, NotProcessedError)
        with pytest.raises(RpcError, match="died"):
            await stream.receive()
        with pytest.raises(StreamClosedError):
            await stream.send([b"b"])
        two.serve()
        await asyncio.sleep(0.1)
        assert await ask(channel) == b"0"

    Two().run(work)


def test_the_client_goes_away() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        stream = channel.open(TALK)
        await stream.send([b"a"])
        asking = asyncio.ensure_future(ask(channel, "5"))
        await asyncio.sleep(0.5)
        await channel.close()
        with pytest.raises(RpcError, match="closed"):
            await asking
        await asyncio.sleep(0.5)
        assert sorted(two.ended) == ["cancelled", "closed"]
        with pytest.raises(NotProcessedError):
            await ask(channel)

    Two().run(work)


def test_a_cancelled_call_and_one_that_is_too_slow_are_cancelled_over_there() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        asking = asyncio.ensure_future(ask(channel, "5"))
        await asyncio.sleep(0.5)
        asking.cancel()
        await asyncio.sleep(0.1)
        with pytest.raises(RpcError) as failed:
            await ask(channel, "5", 1.0)
        assert failed.value.status is GrpcStatus.DEADLINE_EXCEEDED
        await asyncio.sleep(0.1)
        assert two.ended == ["cancelled", "cancelled"]

    Two().run(work)


@pytest.mark.parametrize("direction", ["there", "back", "both"])
def test_a_way_that_is_cut_for_a_while_delays(direction: str) -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        await ask(channel)
        cut(two, direction)
        began_s = two.loop.time()
        two.loop.outside(3.0, two.network.mend_all)
        assert await ask(channel) == b"0"
        assert 3.0 < two.loop.time() - began_s < 3.1
        assert two.learned == [b"0", b"0"]

    Two().run(work)


@pytest.mark.parametrize("direction", ["there", "back", "both"])
def test_a_way_that_is_cut_for_long_ends_the_connection_on_both_sides(direction: str) -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        stream = channel.open(TALK)
        await stream.send([b"a"])
        await stream.receive()
        cut(two, direction)
        began_s = two.loop.time()
        with pytest.raises(RpcError):
            await stream.receive()
        assert KEEPALIVE_S - 0.1 < two.loop.time() - began_s < KEEPALIVE_S + 0.1
        await asyncio.sleep(0.1)
        assert two.ended == ["closed"]
        two.network.mend_all()
        await asyncio.sleep(20.0)
        assert await ask(channel) == b"0"

    Two().run(work)


def test_a_paused_server_answers_when_it_is_resumed_or_is_given_up() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        await ask(channel)
        for pause_s, answers in ((5.0, True), (15.0, False)):
            two.server.pause()
            two.network.paused(two.server)
            two.loop.outside(pause_s, two.server.resume)
            began_s = two.loop.time()
            try:
                await ask(channel, timeout_s=None)
            except RpcError:
                assert not answers and two.loop.time() - began_s < KEEPALIVE_S + 0.1
            else:
                assert answers and two.loop.time() - began_s > pause_s
        await asyncio.sleep(10.0)
        assert await ask(channel) == b"0"

    Two().run(work)


def test_a_broken_connection_loses_what_is_under_way() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        await ask(channel)
        two.network.way("server", "client").broken_share = 1.0
        with pytest.raises(RpcError, match="reset"):
            await ask(channel)
        assert two.learned == [b"0", b"0"]
        two.network.mend_all()
        assert await ask(channel) == b"0"
        two.loop.outside(0.0005, two.network.break_connections, "client", "server")
        with pytest.raises(RpcError, match="reset"):
            await ask(channel)
        assert two.learned == [b"0"] * 3

    Two().run(work)


def test_a_server_that_stops_ends_what_is_under_way_after_a_while() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        stream = channel.open(TALK)
        await stream.send([b"a"])
        await stream.receive()
        asking = asyncio.ensure_future(ask(channel, "1"))
        await asyncio.sleep(0.5)
        stopping = two.server.spawn(two.listener.stop(3.0))
        assert await asking == b"1"
        with pytest.raises(NotProcessedError):
            await ask(channel)
        with pytest.raises(RpcError, match="shutting down"):
            await stream.receive()
        await asyncio.wait_for(stopping, 5)

    Two().run(work)


def test_a_slow_reader_holds_the_sender_up() -> None:
    async def work(two: Two, channel: SimChannel) -> None:
        stream = channel.open(TALK)

        async def send() -> None:
            for _ in range(100):
                await stream.send([b"a"])

        sending = asyncio.ensure_future(send())
        await asyncio.sleep(1)
        assert not sending.done() and len(two.learned) < 40
        for _ in range(100):
            assert await stream.receive() == b"a"
        await sending
        stream.cancel()

    Two().run(work)


def cut(two: Two, direction: str) -> None:
    if direction != "back":
        two.network.cut("client", "server")
    if direction != "there":
        two.network.cut("server", "client")
