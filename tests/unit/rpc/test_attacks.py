"""Each attack on HTTP/2 by name, with the limits that clients of a proxy have: what it makes the server hold."""

import asyncio
import tracemalloc

import pytest

from popwheel_cli.process.listeners import client_limits
from popwheel_proxy.options import ProxyOptions
from popwheel_rpc.http2 import frames
from popwheel_rpc.http2.outbox import Outbox
from popwheel_rpc.http2.streams import Stream
from popwheel_rpc.server.server import Server
from popwheel_rpc.server.server_connection import ServerConnection
from tests.harness.attacks import ATTACKS, Attack, Target
from tests.harness.manual_clock import ManualClock
from tests.unit.rpc.contract_service import ECHO, LISTEN, ContractService
from tests.unit.rpc.peers import Served
from tests.unit.rpc.sockets import Observer, Socket

MIB = 2**20
READ_BYTES = 64 * 1024
LIMITS = client_limits(ProxyOptions())
TARGET = Target(LISTEN.path, ECHO.path, bytes(100_000))


class Attacked:
    """A server under one attack, and the most that it held.

    Args:
        attack: which.
    """

    def __init__(self, attack: Attack) -> None:
        self.observer = Observer()
        self.server = Server(ContractService().service, LIMITS, observer=self.observer, clock=ManualClock())
        self.connection = ServerConnection(self.server)
        self.socket = Socket(self.connection, reads=attack.reads)
        self.connection.connection_made(self.socket)
        self.most: dict[str, int] = {}

    def feed(self, data: bytes) -> None:
        """One read of the socket."""
        self.connection.data_received(data)
        self.measure()

    def measure(self) -> None:
        """Note what is held now, where it is more than before."""
        http2 = self.connection.http2
        held = {
            "streams": len(http2.streams),
            "handlers": len(self.connection._calls) + len(self.connection._lingering),
            "received bytes": http2.buffered_bytes,
            "unsent bytes": http2.outbox.queued_bytes + self.socket.unread_bytes,
            "frames not written": len(http2.outbox._ready),
            "bytes of a frame": len(http2._reader.rest),
            "bytes of a header block": sum(map(len, http2._reader._block)),
            "closed streams remembered": len(http2._closed._recent) + len(http2._closed._older),
            "bytes of the header table": http2._heads._decoder._table_bytes,
        }
        for what, count in held.items():
            self.most[what] = max(count, self.most.get(what, 0))


BOUNDS = {
    "streams": LIMITS.concurrent_streams_max,
    "handlers": LIMITS.concurrent_streams_max,
    "received bytes": LIMITS.receive_buffer_bytes_max,
    "unsent bytes": LIMITS.send_buffer_bytes_max + 8 * MIB,
    "frames not written": 0,
    "bytes of a frame": frames.FRAME_BYTES_DEFAULT + frames.HEADER_BYTES,
    "bytes of a header block": LIMITS.header_list_bytes_max + frames.FRAME_BYTES_DEFAULT,
    "closed streams remembered": 2048,
    "bytes of the header table": 4096,
}


def reads_of(attack: Attack) -> list[bytes]:
    """What the server reads, one turn of its loop each."""
    sent = attack.start() + b"".join(attack.frames(TARGET))
    return [sent[at : at + READ_BYTES] for at in range(0, len(sent), READ_BYTES)]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_an_attack_makes_the_server_hold_no_more_than_its_limits(attack: Attack) -> None:
    attacked = Attacked(attack)
    reads = reads_of(attack)
    loop = asyncio.get_running_loop()
    tracemalloc.start()
    for read in reads:
        if attacked.socket.closed:
            break
        loop.call_soon(attacked.feed, read)  # from a callback, as a loop does it
        await asyncio.sleep(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert attacked.observer.limits[-1] == attack.limit
    assert attacked.socket.closed == attack.closes
    too_much = {what: (count, BOUNDS[what]) for what, count in attacked.most.items() if count > BOUNDS[what]}
    assert too_much == {}
    assert peak < attack.in_use_mib * MIB

    attacked.connection.abort()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not attacked.connection.busy, "nothing runs for somebody who is gone"
    assert not attacked.server._connections
    totals = attacked.server.totals
    assert (totals.received_bytes, totals.unsent_bytes) == (0, 0), "nothing is held for somebody who is gone"
    attacked.server.deadlines.close()


def test_the_last_of_many_initial_windows_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    for number in range(50):
        served.open(2 * number + 1)
    opened: list[int] = []
    apply = Outbox.open_stream_window

    def counted(outbox: Outbox, stream: Stream, increment: int) -> bool:
        opened.append(increment)
        return apply(outbox, stream, increment)

    monkeypatch.setattr(Outbox, "open_stream_window", counted)
    windows = b"".join(b"\0\x04" + (65_535 + value).to_bytes(4, "big") for value in range(2_730))
    served.receive(frames.frame(frames.SETTINGS, 0, 0, windows))
    assert opened == [2_729] * 50
    served.receive(frames.frame(frames.SETTINGS, 0, 0, b"\0\x04" + (2**31).to_bytes(4, "big") + windows[6:]))
    assert served.connection_error() is frames.ErrorCode.FLOW_CONTROL_ERROR, "each value is checked"
