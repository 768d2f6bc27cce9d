"""popwheel.v1.Broker for callers, in any role of this replica.

Clients' calls are forwarded to the servers of the present term; while this replica does not lead they are refused, so
that callers go to the master. The table of handlers lasts as long as the process: the transport reads it once.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Method, Service, Stream, StreamHandler, UnaryHandler

_OF_MASTERS: tuple[Method[Any, Any], ...] = (
    methods.PUT,
    methods.POP,
    methods.ACK,
    methods.CHANGE_INVISIBLE,
    methods.RENEW,
    methods.RELEASE,
    methods.DEAD_LETTER,
    methods.PULL,
    methods.PULL_RECORDS,
    methods.QUERY_OFFSET,
    methods.GET_OFFSET,
    methods.UPDATE_OFFSET,
    methods.RESET_OFFSETS,
    methods.DEAD_LETTER_LIST,
    methods.DEAD_LETTER_REDRIVE,
    methods.DEAD_LETTER_SELECT,
    methods.SYNC_LITE,
    methods.LITE_TOPIC_LIST,
    methods.RECALL,
    methods.END_TRANSACTION,
    methods.TIMER_STATS,
    methods.TIMER_LIST,
    methods.IN_FLIGHT_LIST,
    methods.IN_FLIGHT_SUMMARY,
    methods.IN_FLIGHT_RELEASE,
    methods.PROGRESS_LIST,
    methods.DESCRIBE_USE,
    methods.MESSAGE_TRACE,
    methods.MESSAGE_EVENTS,
    methods.MESSAGE_LIST,
    methods.MESSAGE_TAIL,
    methods.QUARANTINE_LIST,
    methods.QUARANTINE_SHOW,
    methods.QUARANTINE_RETRY,
    methods.QUARANTINE_DROP,
    methods.SAMPLE_ACTIVITY,
    methods.DESCRIBE_GROUPS,
    methods.DESCRIBE_TOPICS,
    methods.GROUP_BALANCE,
    methods.TIMER_HISTOGRAM,
    methods.NAME_LIST,
)
"""Methods that only a master answers: all single calls that are served in a term."""
_STREAMS_OF_MASTERS: tuple[Method[Any, Any], ...] = (methods.NOTIFY, methods.CHECK_TRANSACTIONS)
_WAIT_S = 2.0
"""Time that a call waits for a term that is about to begin."""


class Router:
    """Forwards calls, or refuses them.

    Args:
        name: of the broker, for refusals.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._handlers: dict[str, UnaryHandler[Any, Any]] = {}
        self._served: Service | None = None
        self._to_log: StreamHandler[pb.ReplicateProgress, pb.LogChunk] | None = None
        self._why_closed: str | None = None
        self._opened = asyncio.Event()
        self._streams: set[asyncio.Task[Any]] = set()
        self.service = Service()
        for method in _OF_MASTERS:
            self.service.unary(method, self._passing(method.path))
        for method in _STREAMS_OF_MASTERS:
            self.service.stream(method, self._streaming(method.path))
        self.service.stream(methods.REPLICATE, self._replicate)

    def open(self, served: Service, replicate: StreamHandler[pb.ReplicateProgress, pb.LogChunk]) -> None:
        """Forward calls to the servers of a term, and slaves to its log."""
        self._served = served
        self._to_log = replicate
        self._handlers.update({path: handler for path, (_, handler) in served.unary_handlers.items()})
        self._why_closed = None
        self._opened.set()

    def expect(self) -> None:
        """Park calls for a moment, because this replica is about to lead."""
        self._close()
        self._why_closed = None
        self._opened.clear()

    def refuse(self, why: str) -> None:
        """Refuse calls from now on, and end streams.

        Args:
            why: end of the sentence that begins with the broker's name.
        """
        self._close()
        self._why_closed = why
        self._opened.set()
        for task in list(self._streams):
            task.cancel()

    def hold(self, why: str) -> None:
        """Refuse calls for the moment; streams continue."""
        self._handlers.clear()
        self._why_closed = why
        self._opened.set()

    def _close(self) -> None:
        self._handlers.clear()
        self._served = self._to_log = None

    def _passing(self, path: str) -> UnaryHandler[Any, Any]:
        handlers = self._handlers

        def handle(call: Call, request: Any) -> Awaitable[Any]:
            handler = handlers.get(path)
            return self._later(path, call, request) if handler is None else handler(call, request)

        return handle

    async def _later(self, path: str, call: Call, request: Any) -> Any:
        await self._wait()
        handler = self._handlers.get(path)
        if handler is None:
            raise self._refusal()
        return await handler(call, request)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._opened.wait()
        except TimeoutError:
            return

    def _streaming(self, path: str) -> StreamHandler[Any, Any]:
        async def handle(call: Call, stream: Stream[Any, Any]) -> None:
            await self._stream(path, call, stream)

        return handle

    async def _stream(self, path: str, call: Call, stream: Stream[Any, Any]) -> None:
        """Serve a stream between this master and a proxy, which ends with the term."""
        await self._wait()
        if self._served is None:
            raise self._refusal()
        _, handler = self._served.stream_handlers[path]
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await handler(call, stream)
        except asyncio.CancelledError:
            if self._served is None:
                raise self._refusal() from None
            raise
        finally:
            self._streams.discard(task)

    async def _replicate(self, call: Call, stream: Stream[pb.ReplicateProgress, pb.LogChunk]) -> None:
        await self._wait()
        if self._to_log is None:
            raise self._refusal()
        await self._to_log(call, stream)

    def _refusal(self) -> StatusError:
        why = self._why_closed or "does not lead yet"
        return StatusError(Code.HA_NOT_AVAILABLE, f"the broker {self._name} {why}")
