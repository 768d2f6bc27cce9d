"""What all connections of a server may hold together, gone past by clients that each keep to their own limits."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry

from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.http2.grpc_messages import TRAILERS_OK, frame_message
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.metrics import RpcMetrics
from popwheel_rpc.server.server import Server
from popwheel_rpc.server.server_call import OPEN_CALL_BYTES
from popwheel_rpc.server.server_connection import ServerConnection
from popwheel_rpc.service import Method
from tests.harness.manual_clock import ManualClock
from tests.unit.rpc.contract_service import CHAT, ECHO, WAIT, ContractService
from tests.unit.rpc.peers import block, data, headers
from tests.unit.rpc.sockets import Observer, Socket

KIB = 1024
TOTAL = 256 * KIB
WIDE = 2**30
LIMITS = Limits(message_bytes_max=100 * KIB, receive_total_bytes_max=TOTAL, send_total_bytes_max=TOTAL)
SENTENCE = b"too many unfinished requests at this server; try again"

Bytes = Method[bytes, bytes]


class Peer:
    """A client of the server, its bytes handed over in memory.

    Args:
        server: which.
        reads: whether it takes what the server writes.
    """

    def __init__(self, server: Server, *, reads: bool = True) -> None:
        self.connection = ServerConnection(server)
        self.socket = Socket(self.connection, reads=reads)
        self.connection.connection_made(self.socket)
        self.connection.data_received(frames.PREFACE + frames.settings({frames.SETTING_INITIAL_WINDOW_SIZE: WIDE}))
        self.connection.data_received(frames.window_update(0, WIDE))

    async def send(self, *sent: bytes) -> None:
        """One read of the server's, from a callback, as a loop does it; and what comes of it at once."""
        asyncio.get_running_loop().call_soon(self.connection.data_received, b"".join(sent))
        for _ in range(4):
            await asyncio.sleep(0)


class World:
    """A server with small limits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.observer = Observer()
        self.contract = ContractService()
        self.server = Server(self.contract.service, LIMITS, observer=self.observer, clock=self.clock)

    @property
    def received(self) -> int:
        """Bytes held of requests that are not finished."""
        return self.server.totals.received_bytes


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.server.deadlines.close()


def opening(stream_id: int, method: Bytes, *more: tuple[bytes, bytes]) -> bytes:
    """HEADERS of a call."""
    return headers(stream_id, block(_path=method.path, content_type="application/grpc") + hpack.encode(more))


def part_of_message(stream_id: int, size: int) -> bytes:
    """A number of bytes of a message of 100 KiB."""
    message = frame_message(bytes(100 * KIB))[:size]
    return b"".join(data(stream_id, message[at : at + 16 * KIB]) for at in range(0, size, 16 * KIB))


async def test_calls_of_those_who_hold_most_are_refused_and_others_served(world: World) -> None:
    hoarders = [Peer(world.server, reads=False) for _ in range(3)]
    modest = Peer(world.server, reads=False)
    await modest.send(opening(1, ECHO), part_of_message(1, 10 * KIB))
    for hoarder in hoarders[:2]:
        await hoarder.send(opening(1, ECHO), part_of_message(1, 80 * KIB))
    assert world.observer.limits == []
    assert 170 * KIB < world.received < 180 * KIB
    await hoarders[2].send(opening(1, ECHO), part_of_message(1, 90 * KIB))
    assert world.observer.limits == ["receive_total_bytes_max"]
    assert world.received < TOTAL * 7 // 8
    assert SENTENCE in hoarders[2].socket.take()
    assert not any(peer.socket.closed for peer in (*hoarders, modest)), "calls are refused, not their connections"
    rest = frame_message(bytes(100 * KIB))[10 * KIB :]
    await modest.send(
        *[data(1, rest[at : at + 16 * KIB], end=at + 16 * KIB >= len(rest)) for at in range(0, len(rest), 16 * KIB)]
    )
    assert TRAILERS_OK in modest.socket.take()
    for peer in (*hoarders, modest):
        peer.connection.connection_lost(None)
    assert world.received == 0


async def test_calls_without_a_byte_of_a_message_count_with_their_headers(world: World) -> None:
    peers = [Peer(world.server) for _ in range(2)]
    many = (b"x", b"y" * 10 * KIB)
    await peers[0].send(*[opening(stream_id, WAIT, many) for stream_id in range(1, 21, 2)])
    assert world.received > 10 * (10 * KIB + OPEN_CALL_BYTES)
    assert world.observer.limits == []
    await peers[1].send(*[opening(stream_id, WAIT, many) for stream_id in range(1, 41, 2)])
    assert set(world.observer.limits) == {"receive_total_bytes_max"}
    assert world.received < TOTAL * 7 // 8
    assert len(peers[0].connection._calls) == 10, "the other one holds most"
    before = world.received
    await peers[0].send(data(1, frame_message(b""), end=True))
    assert world.received < before - 10 * KIB, "a call whose request is whole is its handler's business"
    world.contract.released.set()
    await peers[0].send(frames.ping(bytes(8), ack=False))


async def test_frames_that_are_never_finished_cost_the_connection(world: World) -> None:
    peers = [Peer(world.server) for _ in range(20)]
    for peer in peers:
        await peer.send(frames.frame(frames.DATA, 0, 1, bytes(16 * KIB))[:-1])
    closed = [peer for peer in peers if peer.socket.closed]
    assert world.observer.limits == ["receive_total_bytes_max"] * len(closed)
    assert 1 < len(closed) < 10
    assert world.received < TOTAL


async def test_messages_that_their_handler_does_not_take_count_with_what_they_cost(world: World) -> None:
    peer = Peer(world.server, reads=False)
    await peer.send(opening(1, CHAT), data(1, frame_message(b"first")))
    peer.connection.check(world.clock.monotonic())
    assert world.received == 0
    world.contract.service.stream(Method("t.T", "Deaf", CHAT.request, CHAT.response), _deaf)
    deaf = Server(world.contract.service, LIMITS, observer=world.observer, clock=world.clock)
    other = Peer(deaf)
    await other.send(opening(1, Method("t.T", "Deaf", CHAT.request, CHAT.response)))
    await other.send(data(1, frame_message(b"") * 100))
    assert deaf.totals.received_bytes >= 100 * (5 + 64)
    other.connection.abort()
    await asyncio.sleep(0)
    assert deaf.totals.received_bytes == 0


async def _deaf(call: object, stream: object) -> None:
    await asyncio.get_running_loop().create_future()


async def test_who_reads_nothing_goes_first_then_those_for_whom_most_waits(world: World) -> None:
    async def ask(peer: Peer, count: int) -> None:
        for stream_id in range(1, 2 * count, 2):
            await peer.send(opening(stream_id, ECHO), data(stream_id, frame_message(bytes(16 * KIB - 5)), end=True))

    idle = Peer(world.server, reads=False)
    await ask(idle, 2)
    world.clock.advance(4_000)
    slow = [Peer(world.server, reads=False) for _ in range(3)]
    await ask(slow[0], 3)
    await ask(slow[1], 3)
    assert world.observer.limits == []
    await ask(slow[2], 12)
    assert world.observer.limits[0] == "send_total_bytes_max"
    assert idle.socket.closed
    assert slow[2].socket.closed
    assert not slow[0].socket.closed
    assert not slow[1].socket.closed
    for peer in slow[:2]:
        peer.socket.take()
        peer.connection.check(world.clock.monotonic())
    assert world.server.totals.unsent_bytes == 0, "who reads after all holds nothing"


async def test_a_sum_that_is_too_high_costs_nobody_anything(world: World) -> None:
    peer = Peer(world.server)
    await peer.send(opening(1, ECHO), part_of_message(1, 10 * KIB))
    totals = world.server.totals
    totals.received_bytes = totals.unsent_bytes = 10 * TOTAL
    totals.relieve_received()
    totals.relieve_unsent()
    assert world.observer.limits == []
    assert (totals.received_bytes, totals.unsent_bytes) == (peer.connection.received_total, 0)


async def test_two_messages_always_have_room() -> None:
    server = Server([], Limits(message_bytes_max=1000, receive_total_bytes_max=1, send_total_bytes_max=1))
    assert (server.totals.received_bytes_max, server.totals.unsent_bytes_max) == (2000, 2000)


async def test_the_sums_are_metrics(world: World) -> None:
    registry = CollectorRegistry()
    RpcMetrics(registry).read_from(world.server.totals)
    peer = Peer(world.server)
    await peer.send(opening(1, ECHO), part_of_message(1, 10 * KIB))
    assert registry.get_sample_value("popwheel_rpc_received_bytes") == world.received > 10 * KIB
    assert registry.get_sample_value("popwheel_rpc_unsent_bytes") == 0
