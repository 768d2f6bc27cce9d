"""Reserved ports: bound before anything else is done, by a process for itself or for its children."""

import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from popwheel_cli.process.listeners import EVERYWHERE, not_ours
from popwheel_common.errors import ConfigurationError


class Ports:
    """Reservations of ports of this machine while it is open; ports in use cannot be reserved.

    A reserved port is bound and not listened on, so who sets SO_REUSEADDR, as all servers here do, can listen on it:
    this process when it has its data, and a child, now and when it is started again.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._reserved: list[tuple[str, int, str]] = []
        """Host, port, and the setting they come from."""

    def reserve(self, host: str, port: int, key: str) -> int:
        """Reserve a port.

        Args:
            host: name or address that will be listened on.
            port: which; 0 for any that is free.
            key: the setting it comes from, for the sentence if it cannot be had.

        Returns:
            The port.

        Raises:
            ConfigurationError: it is in use, it is reserved here, or the host is not this machine's.
        """
        for other_host, other, other_key in self._reserved:
            if port == other and (host == other_host or {host, other_host} & {*EVERYWHERE}):
                raise ConfigurationError(key, f"{port} is the port of {other_key}, too; choose another")
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
        self._reserved.append((host, port, key))
        return port

    def close(self) -> None:
        """Release the ports."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
