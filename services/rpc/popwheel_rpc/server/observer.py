"""Observer of the transport: metrics, and tests."""

from typing import Protocol

from popwheel_rpc.status import GrpcStatus


class RpcObserver(Protocol):
    """Observer of a server; called often, so it must be quick."""

    def connection_opened(self) -> None:
        """Observe that a client has connected."""

    def connection_closed(self) -> None:
        """Observe that a connection has closed."""

    def call_started(self, path: str) -> None:
        """Observe that a handler begins; only served paths are reported."""

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None:
        """Observe that a handler has ended.

        Args:
            path: `/service/method`.
            status: what its caller got, or would have got.
            seconds: since its request was whole, or, for a stream, since it was opened.
        """

    def limit_hit(self, name: str) -> None:
        """Observe that a limit was exceeded; `name` is the field of `popwheel_rpc.limits.Limits`."""


class SilentObserver:
    """Observer that ignores all events."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def call_started(self, path: str) -> None: ...

    def call_ended(self, path: str, status: GrpcStatus, seconds: float) -> None: ...

    def limit_hit(self, name: str) -> None: ...
