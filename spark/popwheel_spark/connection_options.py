"""Connection options of reads and writes."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from popwheel_common.contract.credentials import Credentials
from popwheel_spark.errors import OptionError
from popwheel_spark.given_options import HOW_TABLES_ARE_MADE, GivenOptions

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,]+):\d{1,5}")


@dataclass(frozen=True)
class ConnectionOptions:
    """Connection to a cluster: addresses, TLS and credentials.

    Args:
        endpoints: `host:port` of each proxy.
        tls: whether to use TLS to them.
        authority: PEM of those whose certificates are trusted; empty: the system's. Read on the driver, so that the
            file need not be on every worker.
        timeout_s: how long a failed request is retried.
        admin: base URL of the admin API; empty if not given.
        credentials: access key and secret, shown to the proxies; an empty key shows nothing.
        token: shown to the admin API; empty if not given.
    """

    endpoints: tuple[str, ...]
    tls: bool
    authority: str
    timeout_s: float
    admin: str
    credentials: Credentials
    token: str = field(repr=False)

    @classmethod
    def take(cls, given: GivenOptions) -> "ConnectionOptions":
        """Return the connection of these options.

        Raises:
            OptionError: one is missing or impossible.
        """
        endpoints = given.words("endpoints")
        if not endpoints:
            raise OptionError(
                "endpoints",
                f"say where the proxies are: HOST:PORT, of several with commas between. {HOW_TABLES_ARE_MADE}",
            )
        for endpoint in endpoints:
            if not _ADDRESS.fullmatch(endpoint):
                raise OptionError("endpoints", f"{endpoint!r} is not HOST:PORT")
        credentials = Credentials(given.text("accessKey"), given.text("secretKey"))
        if bool(credentials.access_key) != bool(credentials.secret):
            raise OptionError("secretKey", "accessKey and secretKey belong together: give both or none")
        tls = given.flag("tls")
        file = given.text("tlsCaFile")
        if file and not tls:
            raise OptionError("tlsCaFile", "it has no meaning without tls=true")
        admin = given.text("admin").rstrip("/")
        if admin and not admin.startswith(("http://", "https://")):
            raise OptionError("admin", f"{admin!r} is not http://HOST:PORT, where the controller's admin API is")
        timeout_s = given.number("timeoutMs") / 1000
        return cls(endpoints, tls, _pem(file), timeout_s, admin, credentials, given.text("adminToken"))


def _pem(file: str) -> str:
    if not file:
        return ""
    try:
        return Path(file).read_text()
    except OSError as error:
        raise OptionError("tlsCaFile", f"cannot read {file!r} on the driver: {error.strerror}") from None
