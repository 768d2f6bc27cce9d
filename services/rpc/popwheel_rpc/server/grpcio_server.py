"""Server on grpcio's asyncio server (`transport: grpcio`), to compare with our own transport.

Plain text only: grpcio cannot serve TLS and plain text on one port. Of the limits it keeps the message size and the
number of streams; the rest are its own.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import structlog
from google.protobuf.message import DecodeError

from popwheel_common.clock import Clock, SystemClock
from popwheel_common.errors import StatusError, forget_frames
from popwheel_rpc.http2 import grpc_messages
from popwheel_rpc.limits import Limits
from popwheel_rpc.server.observer import RpcObserver, SilentObserver
from popwheel_rpc.service import Call, Route, Service, StreamClosedError, routes_of
from popwheel_rpc.status import GrpcStatus, RpcError

log = structlog.get_logger()

_CANCELLATION_DELAY_S = 0.01


class GrpcioServer:
    """Server with the interface of `popwheel_rpc.server.server.Server`.

    Args:
        services: one service or several; no method may be in two of them.
        limits: of these only message size and number of streams apply.
        observer: notified of calls.
        clock: the machine's if not given.
    """

    def __init__(
        self,
        services: Service | Sequence[Service],
        limits: Limits | None = None,
        *,
        observer: RpcObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.port = 0
        self._routes = routes_of(services)
        self._limits = limits or Limits()
        self._observer = observer or SilentObserver()
        self._clock = clock or SystemClock()
        self._server: Any = None

    async def start(self, host: str, port: int, *, shared: bool = False) -> None:
        """Listen on a port, 0 for any that is free (`self.port` has it); `shared` as for the other server.

        Raises:
            OSError: the address is taken or not ours.
        """
        # Its library writes to standard error itself, and would block there if the reader hangs.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # Imported late: slower to load than the rest of a server, and rarely used.
        import grpc

        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._limits.message_bytes_max),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", self._limits.concurrent_streams_max),
                ("grpc.so_reuseport", int(shared)),
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ]
        )
        handlers = {path: self._handler(grpc, route) for path, route in self._routes.items()}

        class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, details: Any) -> Any:
                return handlers.get(details.method)

        server.add_generic_rpc_handlers((Handlers(),))
        try:
            self.port = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(str(error)) from None
        await server.start()
        self._server = server

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and give those under way `grace_s` seconds to end; then end them."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def _handler(self, grpc: Any, route: Route) -> Any:
        # grpcio distinguishes a coroutine from a plain handler by its kind of function, so a lambda would not do.
        async def on_stream(_: Any, context: Any) -> None:
            await self._run(route, context, _GrpcioStream(route, context))

        async def on_message(data: bytes, context: Any) -> bytes | None:
            return await self._run(route, context, data)

        if route[2]:
            return grpc.stream_stream_rpc_method_handler(on_stream)
        return grpc.unary_unary_rpc_method_handler(on_message)

    async def _run(self, route: Route, context: Any, argument: Any) -> bytes | None:
        """Run one handler and send its outcome to the caller."""
        method, handler, streaming = route
        began = self._clock.monotonic()
        self._observer.call_started(method.path)
        status = GrpcStatus.CANCELLED
        try:
            if streaming:
                await context.send_initial_metadata(())
            else:
                argument = _decode(route, argument)
            result = await handler(self._call(method.path, context), argument)
            status = GrpcStatus.OK
            return None if streaming else method.response.encode(result)
        except (StatusError, RpcError) as error:
            status = error.status if isinstance(error, RpcError) else grpc_messages.grpc_status(error.code)
            forget_frames(error)
            await _abort(context, status, error)
        except (asyncio.CancelledError, StreamClosedError):
            raise asyncio.CancelledError from None
        except Exception as error:
            log.error("handler failed", path=method.path, peer=_peer(context), exc_info=error)
            status = GrpcStatus.INTERNAL
            await _abort(context, status, RpcError(status, "the handler failed; its server's log says why"))
        finally:
            self._observer.call_ended(method.path, status, self._clock.monotonic() - began)
        return None

    def _call(self, path: str, context: Any) -> Call:
        metadata: dict[str, str] = {}
        for name, value in context.invocation_metadata():
            text = value if isinstance(value, str) else value.decode("latin-1")
            metadata[name] = f"{metadata[name]},{text}" if name in metadata else text
        remaining_s = context.time_remaining()
        deadline = None
        if remaining_s is not None:
            deadline = self._clock.monotonic() + min(remaining_s, grpc_messages.TIMEOUT_S_MAX)
        return Call(path, metadata, deadline, _peer(context))


class _GrpcioStream:
    """The `Stream` of a handler."""

    def __init__(self, route: Route, context: Any) -> None:
        self._route = route
        self._context = context

    async def receive(self) -> Any | None:
        import grpc

        if self._context.cancelled():
            raise StreamClosedError("the caller has cancelled the call or gone away")
        data = await self._context.read()
        if data is not grpc.aio.EOF:
            return _decode(self._route, data)
        # A cancelled call reads as ended, too; grpcio distinguishes them a moment later.
        await asyncio.sleep(_CANCELLATION_DELAY_S)
        if self._context.cancelled():
            raise StreamClosedError("the caller has cancelled the call or gone away")
        return None

    async def send(self, messages: Sequence[Any]) -> None:
        import grpc

        encode = self._route[0].response.encode
        for message in messages:
            if self._context.cancelled():
                raise StreamClosedError("the caller has cancelled the call or gone away")
            try:
                await self._context.write(encode(message))
            except grpc.aio.BaseError as error:
                raise StreamClosedError(str(error)) from error


def _decode(route: Route, data: bytes) -> Any:
    try:
        return route[0].request.decode(data)
    except (DecodeError, ValueError):
        raise RpcError(GrpcStatus.INVALID_ARGUMENT, f"the message is no request of {route[0].path}") from None


async def _abort(context: Any, status: GrpcStatus, error: StatusError | RpcError) -> None:
    import grpc

    codes = {code.value[0]: code for code in grpc.StatusCode}
    await context.abort(codes[int(status)], error.message, tuple(grpc_messages.own_trailers(error)))


def _peer(context: Any) -> str:
    """Return `ipv4:127.0.0.1:40312` in the form of `Call.peer`."""
    return unquote(context.peer()).partition(":")[2]
