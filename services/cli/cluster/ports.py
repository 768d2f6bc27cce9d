"""Ports for processes that are still to be started."""

import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from services.cli.process.listeners import not_ours


class Ports:
    """Reserves ports of this machine for as long as it is open: no other reservation and no listener can have them.

    A reserved port is bound and not listened on, so a child that sets SO_REUSEADDR, as all servers here do, can listen
    on it, now and when it is started again.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def reserve(self, host: str, port: int, key: str) -> int:
        """Reserve a port.

        Args:
            host: name or address that will be listened on.
            port: which; 0 for any that is free.
            key: the setting it comes from, for the sentence if it cannot be had.

        Returns:
            The port.

        Raises:
            ConfigurationError: somebody listens there already, or the host is not this machine's.
        """
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                sock = self._stack.enter_context(socket.socket(family, kind, protocol))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address[0], port, *address[2:]))
                port = port or sock.getsockname()[1]
        except (OSError, OverflowError) as error:
            raise not_ours(key, host, port, error) from error
        return port

    def close(self) -> None:
        """Let others have them."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
