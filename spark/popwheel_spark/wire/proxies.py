"""Calls to the proxies of a cluster, retried at the next one until one answers or the time is over."""

import asyncio
import random
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from popwheel_common.contract.credentials import signed_headers
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Status
from popwheel_rpc.backoff import Backoff
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.limits import MIB, Limits
from popwheel_rpc.service import Channel
from popwheel_rpc.status import GrpcStatus, RpcError
from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.errors import RefusedError, UnreachableError

T = TypeVar("T")

CALL_S: Final = 15.0
"""Time that one try may take: proxies park calls for up to 10 s while a broker group changes its master."""
_LIMITS = Limits(message_bytes_max=64 * MIB)
"""Messages have at most 4 MiB unless proxies are configured for larger ones."""
_PASSING_CODES = frozenset(
    (
        Code.HA_NOT_AVAILABLE,
        Code.TOO_MANY_REQUESTS,
        Code.PROXY_TIMEOUT,
        Code.REQUEST_TIMEOUT,
        Code.INTERNAL_SERVER_ERROR,
        Code.MASTER_PERSISTENCE_TIMEOUT,
        Code.SLAVE_PERSISTENCE_TIMEOUT,
    )
)
_PASSING_STATUSES = frozenset(
    (
        GrpcStatus.UNAVAILABLE,
        GrpcStatus.DEADLINE_EXCEEDED,
        GrpcStatus.CANCELLED,
        GrpcStatus.RESOURCE_EXHAUSTED,
        GrpcStatus.UNKNOWN,
    )
)


def check(status: Status) -> None:
    """Raise the status of an answer.

    Raises:
        StatusError: its status is not OK.
    """
    if status.code != Code.OK:
        raise StatusError(status.code, status.message)


class Proxies:
    """Proxies of a cluster, one of which is used at a time. To be used within one event loop.

    Args:
        options: where they are, and for how long calls are tried.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._tls = _tls(options) if options.tls else None
        self._random = random.Random()
        self._current = self._random.randrange(len(options.endpoints))  # so that tasks spread over the proxies
        self._channels: dict[int, Channel] = {}
        self._headers = {
            "x-mq-client-id": f"spark@{uuid.uuid4()}",
            "x-mq-client-version": "5.1.2",
            "x-mq-language": "PYTHON",
            "x-mq-protocol": "v2",
        }

    @property
    def metadata(self) -> dict[str, str]:
        """Return the headers of the next call."""
        return self._headers | signed_headers(self._options.credentials, int(time.time() * 1000))

    async def call(self, what: str, once: Callable[[Channel], Awaitable[T]]) -> T:
        """Make an idempotent call.

        Args:
            what: it is for, in words: `pulling from queue 3 of orders at broker-0`.
            once: makes it.

        Raises:
            RefusedError: a proxy refused it.
            UnreachableError: it has failed for as long as `timeoutMs` says, with each proxy in turn.
        """
        backoff = Backoff(self._random)
        clock = asyncio.get_running_loop().time
        give_up_at: float | None = None
        while True:
            number = self._current
            failure: Exception
            try:
                async with asyncio.timeout(CALL_S):
                    return await once(self._channel(number))
            except StatusError as error:
                if error.code not in _PASSING_CODES:
                    raise RefusedError(f"{what} was refused: {error}") from error
                failure = error
            except RpcError as error:
                if error.status not in _PASSING_STATUSES:
                    raise RefusedError(f"{what} failed: {error}") from error
                failure = error
            except TimeoutError:
                failure = TimeoutError(f"no answer within {CALL_S:.0f} s")
            give_up_at = give_up_at or clock() + self._options.timeout_s
            wait_s = backoff.next_s()
            if clock() + wait_s > give_up_at:
                raise UnreachableError(
                    f"{what} has failed for {self._options.timeout_s:.0f} s (timeoutMs) with "
                    f"{', '.join(self._options.endpoints)}; at last: {failure}"
                ) from failure
            if number == self._current:  # else another call has switched to the next one
                self._current = (number + 1) % len(self._options.endpoints)
            await asyncio.sleep(wait_s)

    def _channel(self, number: int) -> Channel:
        if number not in self._channels:
            self._channels[number] = connect(self._options.endpoints[number], tls=self._tls, limits=_LIMITS)
        return self._channels[number]

    async def close(self) -> None:
        """End all connections."""
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()


def _tls(options: ConnectionOptions) -> Callable[[], ssl.SSLContext]:
    context = ssl.create_default_context(cadata=options.authority or None)
    context.set_alpn_protocols(["h2"])
    return lambda: context
