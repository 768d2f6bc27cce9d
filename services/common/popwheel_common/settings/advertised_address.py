"""Address under which clients reach a proxy: `host`, `host:port` or `:port` (pure)."""

import re
from dataclasses import dataclass
from typing import Self

_HOST = re.compile(r"[^\s/@,:\[\]]+|\[[0-9A-Fa-f:.]{2,45}\]")
_IPV6 = re.compile(r"[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """Parts of an advertised address.

    Args:
        host: name or address, IPv6 without brackets; empty if it is not given.
        port: 0 if it is not given.
    """

    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the parts of a text; neither, if it is empty.

        Raises:
            ValueError: it has another form.
        """
        host, separator, port = text.rpartition(":") if text.rfind(":") > text.rfind("]") else (text, "", "")
        if _IPV6.fullmatch(text):
            host, separator = f"[{text}]", ""
        if separator and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
            raise ValueError(f"must be host, host:port or :port, with a port from 1 to 65535, not {text}")
        if host and not _HOST.fullmatch(host):
            raise ValueError(f"must be host, host:port or :port, such as mq.example.com:8081, not {text}")
        return cls(host.strip("[]"), int(port) if separator else 0)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host
