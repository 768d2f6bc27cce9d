"""One connection between two simulated processes, and the calls on it.

Whatever passes between its ends is bytes, in the order in which it was sent. The end of a process that dies is closed
by its machine: the other end learns of it, unless the way is cut.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from popwheel_common.errors import StatusError
from popwheel_rpc.service import Call, Method
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError
from tests.sim.cluster.stream import ClientStream, Failure, Room, ServerStream
from tests.sim.cluster.way import Direction, Way
from tests.sim.loop import SimLoop
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.cluster.network import Listener, SimChannel

_log = structlog.get_logger()


class Connection:
    """A connection, from the moment that somebody tries to make it.

    Args:
        loop: the loop.
        chance: delays and breaks.
        channel: whose connection it is.
        there, back: the ways between the machines.
    """

    def __init__(self, loop: SimLoop, chance: random.Random, channel: "SimChannel", there: Way, back: Way) -> None:
        self.loop = loop
        self.channel = channel
        self.to_server = Direction(loop, chance, there, None, self.reset)
        self.to_client = Direction(loop, chance, back, channel.process, self.reset)
        self.client = ClientEnd(self, channel.process)
        self.server: ServerEnd | None = None
        self.opened: asyncio.Future[None] = loop.create_future()

    @property
    def ways(self) -> tuple[Way, Way]:
        """There and back."""
        return self.to_server.way, self.to_client.way

    def ends(self) -> "list[ClientEnd | ServerEnd]":
        """Those that there are."""
        return [self.client] if self.server is None else [self.client, self.server]

    def accept(self, listener: "Listener") -> None:
        """The other machine takes the connection."""
        self.to_server.target = listener.process
        self.server = ServerEnd(self, listener)
        listener.connections[self] = None
        self.to_client.send(0, self._open)

    def refuse(self, reason: str) -> None:
        """Nobody listens there."""
        self.to_client.send(0, self.client.lose, NotProcessedError(reason))

    def reset(self) -> None:
        """Break it: what is under way is lost, and both ends learn of it."""
        self.to_server.is_dead = self.to_client.is_dead = True
        for end in self.ends():
            self.loop.call_soon(end.lose, _broken("the connection was reset"), context=end.process.context)

    def lose_end_of(self, name: str) -> None:
        """Have the end on one machine vanish: the other one learns of it only when it hears nothing for too long."""
        self.to_server.is_dead = self.to_client.is_dead = True
        for end in self.ends():
            later_s = 0.0 if end.process.name == name else end.keepalive_s
            self.loop.call_later(later_s, end.lose, _broken("the connection is half open"), context=end.process.context)

    def hang_up(self, end: "ClientEnd | ServerEnd", reason: str) -> None:
        """One end goes: the other one learns of it behind all that was sent before."""
        other = self.server if end is self.client else self.client
        direction = self.to_server if end is self.client else self.to_client
        if other is not None:
            direction.send(0, other.lose, _broken(reason))

    def watch(self) -> None:
        """Something is wrong with a way or an end: see later whether the ends are to be given up."""
        for end in self.ends():
            self.loop.call_later(end.keepalive_s, self._check, end, context=end.process.context)

    def _check(self, end: "ClientEnd | ServerEnd") -> None:
        """Give the connection up if nothing came from the other end for too long."""
        other = self.server if end is self.client else self.client
        now = self.loop.time() + 1e-6
        silent = [way.cut_since for way in self.ways if way.cut_since is not None]
        if other is not None and other.process.paused_since is not None:
            silent.append(other.process.paused_since)
        if not end.is_lost and any(now - since >= end.keepalive_s for since in silent):
            end.lose(_broken("no sign of life came in time"))
            self.hang_up(end, "the other end has given the connection up")

    def lost(self) -> None:
        """One end is gone; when nobody is left at any, the connection is."""
        if all(end.is_lost or not end.process.alive for end in self.ends()):
            self.channel.network.forget(self)

    def _open(self) -> None:
        if not self.opened.done():
            self.opened.set_result(None)


class ClientEnd:
    """Who calls.

    Args:
        connection: its connection.
        process: to whom it belongs.
    """

    def __init__(self, connection: Connection, process: Process) -> None:
        self.connection = connection
        self.process = process
        self.keepalive_s = connection.channel.keepalive_s
        self.is_lost = False
        self._last_number = 0
        self._asking: dict[int, asyncio.Future[bytes]] = {}
        self._streams: dict[int, ClientStream[Any, Any]] = {}

    async def ask(self, path: str, data: bytes, metadata: Mapping[str, str], timeout_s: float | None) -> bytes:
        """Call a unary method; see `Channel.call`."""
        connection, number = self.connection, self._number()
        answer: asyncio.Future[bytes] = connection.loop.create_future()
        self._asking[number] = answer
        server = connection.server
        assert server is not None
        connection.to_server.send(number, server.asked, number, path, data, metadata, timeout_s)
        try:
            return await answer
        except asyncio.CancelledError:
            connection.to_server.send(number, server.cancelled, number)
            raise
        finally:
            self._asking.pop(number, None)

    def open(self, stream: ClientStream[Any, Any], metadata: Mapping[str, str], timeout_s: float | None) -> None:
        """Begin a streaming call."""
        connection, number = self.connection, self._number()
        server = connection.server
        assert server is not None
        self._streams[number] = stream
        stream.room_for_answers = Room()
        connection.to_server.send(
            number, server.opened, number, stream.method.path, metadata, timeout_s, stream.room, stream.room_for_answers
        )

        def transmit(what: bytes | bool | None) -> None:
            if what is False:
                self._streams.pop(number, None)
                connection.to_server.send(number, server.cancelled, number)
            else:
                connection.to_server.send(number, server.received, number, what)

        stream.transmit = transmit

    def answered(self, number: int, outcome: bytes | Failure) -> None:
        """An answer has come."""
        answer = self._asking.get(number)
        if answer is None or answer.done():
            return
        if isinstance(outcome, bytes):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)

    def received(self, number: int, data: bytes) -> None:
        """A message of a stream has come."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.inbox.add(data)

    def ended(self, number: int, failure: Failure | None) -> None:
        """A stream is over."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.over(failure)

    def retire(self) -> None:
        """The server takes no more calls here; those under way go on."""
        self.connection.channel.let_go(self.connection)

    def lose(self, failure: RpcError) -> None:
        """The connection is gone."""
        if self.is_lost:
            return
        self.is_lost = True
        connection = self.connection
        connection.channel.let_go(connection)
        if not connection.opened.done():
            connection.opened.set_exception(failure)
        for answer in self._asking.values():
            if not answer.done():
                answer.set_exception(failure)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.over(failure)
        connection.lost()

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number


class ServerEnd:
    """Who answers.

    Args:
        connection: its connection.
        listener: who took it.
    """

    def __init__(self, connection: Connection, listener: "Listener") -> None:
        self.connection = connection
        self.process = listener.process
        self.keepalive_s = listener.keepalive_s
        self.is_lost = False
        self.is_closing = False
        self._listener = listener
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, ServerStream[Any, Any]] = {}

    @property
    def is_quiet(self) -> bool:
        """Whether no call is under way."""
        return not self._calls

    def asked(self, number: int, path: str, data: bytes, metadata: Mapping[str, str], timeout_s: float | None) -> None:
        """A unary call has come."""
        self._begin(number, path, metadata, timeout_s, data, None)

    def opened(
        self,
        number: int,
        path: str,
        metadata: Mapping[str, str],
        timeout_s: float | None,
        room_for_requests: Room,
        room: Room,
    ) -> None:
        """A streaming call has come."""
        self._begin(number, path, metadata, timeout_s, b"", (room_for_requests, room))

    def _begin(
        self,
        number: int,
        path: str,
        metadata: Mapping[str, str],
        timeout_s: float | None,
        data: bytes,
        rooms: tuple[Room, Room] | None,
    ) -> None:
        connection, client = self.connection, self.connection.client
        if self.is_lost:
            return
        said = client.answered if rooms is None else client.ended
        if self.is_closing:
            connection.to_client.send(number, said, number, NotProcessedError("the server is shutting down"))
            return
        route = self._listener.routes.get(path)
        if route is None or route[2] is (rooms is None):
            failure = RpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {path} here")
            connection.to_client.send(number, said, number, failure)
            return
        deadline = None if timeout_s is None else connection.loop.time() + timeout_s
        call = Call(path, metadata, deadline, f"{client.process.name}:1")
        method, handler, _ = route
        if rooms is None:
            work = self._answer(number, call, method, handler, data)
        else:
            stream = ServerStream(method, lambda part: self._report(number, path, part), rooms[0])
            stream.room = rooms[1]
            self._streams[number] = stream
            work = self._serve(number, call, handler, stream)
        task = connection.loop.create_task(work, name=f"serve {path}")
        if rooms is not None:
            stream.task = task
        self._calls[number] = task
        task.add_done_callback(lambda _: self._done(number))

    async def _answer(self, number: int, call: Call, method: Method[Any, Any], handler: Any, data: bytes) -> None:
        outcome: bytes | Failure
        try:
            async with asyncio.timeout_at(call.deadline) as patience:
                outcome = method.response.encode(await handler(call, method.request.decode(data)))
        except (StatusError, RpcError) as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - logged, and asked to the caller
            outcome = _failed(call, error, patience)
        self.connection.to_client.send(number, self.connection.client.answered, number, outcome)

    async def _serve(self, number: int, call: Call, handler: Any, stream: ServerStream[Any, Any]) -> None:
        failure: Failure | None = None
        try:
            async with asyncio.timeout_at(call.deadline) as patience:
                await handler(call, stream)
        except (StatusError, RpcError) as error:
            failure = error
        except asyncio.CancelledError:
            failure = RpcError(GrpcStatus.CANCELLED, "the call was cancelled by its handler")
        except Exception as error:  # noqa: BLE001 - logged, and asked to the caller
            failure = _failed(call, error, patience)
        stream.room.close()
        self.connection.to_client.send(number, self.connection.client.ended, number, failure)

    def _report(self, number: int, path: str, part: bytes) -> None:
        connection = self.connection
        for what, later_s in self._listener.tamper(path, part):
            connection.to_client.send(number, connection.client.received, number, what, later_s=later_s)

    def received(self, number: int, data: bytes | None) -> None:
        """A message of a stream has come; None: the caller has said all."""
        stream = self._streams.get(number)
        if stream is None:
            return
        if data is None:
            stream.inbox.end()
        else:
            stream.inbox.add(data)

    def cancelled(self, number: int) -> None:
        """The caller has given a call up."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.break_off()
        elif number in self._calls:
            self._calls[number].cancel()

    def close(self) -> None:
        """Take no more calls."""
        self.is_closing = True
        self.connection.to_client.send(0, self.connection.client.retire)

    def end_calls(self) -> None:
        """End what is under way."""
        failure = RpcError(GrpcStatus.UNAVAILABLE, "the server is shutting down")
        for number in list(self._calls):
            said = self.connection.client.ended if number in self._streams else self.connection.client.answered
            self.connection.to_client.send(number, said, number, failure)
            self.cancelled(number)

    def lose(self, failure: RpcError) -> None:
        """The connection is gone."""
        if self.is_lost:
            return
        self.is_lost = True
        self._listener.connections.pop(self.connection, None)
        for number in list(self._calls):
            self.cancelled(number)
        self.connection.lost()

    def _done(self, number: int) -> None:
        self._calls.pop(number, None)
        self._streams.pop(number, None)


def _failed(call: Call, error: Exception, patience: asyncio.Timeout) -> RpcError:
    if isinstance(error, TimeoutError) and patience.expired():
        return RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed")
    _log.error("handler failed", path=call.path, peer=call.peer, exc_info=error)
    return RpcError(GrpcStatus.INTERNAL, "the handler failed; its server's log says why")


def _broken(reason: str) -> RpcError:
    return RpcError(GrpcStatus.UNAVAILABLE, reason)
