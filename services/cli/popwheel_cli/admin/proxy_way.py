"""Proxy that commands send and read messages through."""

import asyncio
import functools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from popwheel_cli.admin.api import AdminApi
from popwheel_cli.errors import CommandError

if TYPE_CHECKING:
    from popwheel_cli.messages.client import MessageClient
    from popwheel_rpc.service import Channel

Function = TypeVar("Function", bound=Callable[..., Any])
Outcome = TypeVar("Outcome")

_EVERYWHERE = ("0.0.0.0", "[::]")


class ProxyWay:
    """Runner of work that needs a proxy.

    Args:
        api: of the cluster.
        proxy: `host:port` of the proxy; empty: the context's, or one that the cluster names.
        tls: whether it is spoken to over TLS, though no context says so.
        tls_authority: certificates that vouch for it; None: the context's, or the system's.
    """

    def __init__(self, api: AdminApi, proxy: str, tls: bool, tls_authority: Path | None) -> None:
        self.api = api
        self._proxy = proxy
        self._tls = tls or tls_authority is not None or api.connection.tls
        self._tls_authority = tls_authority or api.connection.tls_authority

    @functools.cached_property
    def address(self) -> str:
        """`host:port` of the proxy.

        Raises:
            CommandError: the cluster, which would know one, does not answer.
        """
        return self._proxy or self.api.connection.proxy or found_proxy(self.api)

    def channel(self) -> "AbstractAsyncContextManager[Channel]":
        """Open a channel to the proxy for the `with` block.

        Raises:
            CommandError: the address is not of that form, or the certificates cannot be read.
        """
        from popwheel_cli.messages.client import connected

        return connected(self.address, tls=self._tls, authority=self._tls_authority)

    def run(self, work: "Callable[[MessageClient], Awaitable[Outcome]]", topic: str = "") -> Outcome:
        """Run work that needs a client.

        Args:
            work: called with the client.
            topic: of which it is, for the advice in errors.

        Raises:
            CommandError: it was refused, or the proxy does not answer.
        """
        from popwheel_cli.messages.client import MessageClient
        from popwheel_common.clock import SystemClock
        from popwheel_common.errors import StatusError
        from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
        from popwheel_rpc.service import StreamClosedError
        from popwheel_rpc.status import GrpcStatus, RpcError

        address = self.address

        async def run() -> Outcome:
            async with self.channel() as channel:
                client = MessageClient(channel, secrets.token_hex(4), SystemClock(), self.api.credentials)
                return await work(client)

        try:
            return asyncio.run(run())
        except StatusError as error:
            advice = {
                Code.TOPIC_NOT_FOUND: f": popwheel topic create {topic}" if topic else "",
                Code.UNAUTHORIZED: ": popwheel --access-key, POPWHEEL_SECRET, or a context",
            }
            raise CommandError(f"{error}{advice.get(error.code, '')}") from error
        except (RpcError, StreamClosedError) as error:
            if isinstance(error, RpcError) and error.status not in (GrpcStatus.UNAVAILABLE, GrpcStatus.CANCELLED):
                raise CommandError(f"the call of the proxy at {address} failed: {error}") from error
            how = (
                "say with --tls-ca who vouches for it, or leave out --tls"
                if self._tls
                else "add --tls if it demands TLS"
            )
            raise CommandError(
                f"the proxy at {address} could not be called ({error}); name another with --proxy, or {how}"
            ) from error


def found_proxy(api: AdminApi) -> str:
    """Return `host:port` of a ready proxy. For one that listens on all addresses, it is the controller's host.

    Raises:
        CommandError: none is, or the controller does not answer.
    """
    for one in api.request("GET", "/cluster/status")["processes"]:
        if one["kind"] == "proxy" and one["ready"]:
            address = str(one["address"])
            host, _, port = address.rpartition(":")
            if port:
                return f"{api.host}:{port}" if host in _EVERYWHERE else address
    raise CommandError("no proxy is ready through which messages could go; name one with --proxy")


def through_proxy(function: Function) -> Callable[..., Any]:
    """Add the options that choose the proxy, and pass the command a `way`."""

    @click.option("--proxy", default="", metavar="HOST:PORT", help="Proxy to use.  [default: the context's, or any]")
    @click.option("--tls", is_flag=True, help="Use TLS to the proxy.")
    @click.option(
        "--tls-ca",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Certificates that vouch for it; implies --tls.  [default: the system's]",
    )
    @click.pass_obj
    @functools.wraps(function)
    def command(api: AdminApi, /, proxy: str, tls: bool, tls_ca: Path | None, **others: Any) -> Any:
        return function(way=ProxyWay(api, proxy, tls, tls_ca), **others)

    return command
