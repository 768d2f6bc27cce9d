"""The names by which a process may be asked over HTTP (pure).

A page of another site may have its own name point at this machine (DNS rebinding). The browser then takes our answers
for that site's own. The header `host` gives it away: it has the name of that site.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

_SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_FROM_OUTSIDE = frozenset(("cross-site", "same-site"))


class AllowedHosts:
    """Distinguishes good names from others. Addresses are good: no name points elsewhere then.

    Args:
        names: of this process, beside `localhost`. `*.example.com` stands for all names below it,
            `*` for whatever there is.
    """

    def __init__(self, names: Iterable[str]) -> None:
        lower = {name.strip().lower().rstrip(".") for name in names} - {""}
        self._all = "*" in lower
        self._names = {"localhost", *lower}
        self._endings = tuple(name[1:] for name in lower if name.startswith("*."))

    def add(self, name: str) -> None:
        """Add one, in whichever thread."""
        self._names.add(name.lower().rstrip("."))

    def allow(self, host: str) -> bool:
        """Return whether a request is meant for this process, by the header `host`."""
        if self._all:
            return True
        name = host_name(host)
        if name is None:
            return False
        return name in self._names or name.endswith(self._endings) or _is_address(name)


def host_name(host: str) -> str | None:
    """Return the name or address in `host:port`, in small letters; None if there is none."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")) or not _is_address(name):
            return None
        port = port[1:]
    else:
        name, _, port = host.partition(":")
    if not name or (port and not (port.isascii() and port.isdigit())):
        return None
    return name.lower().removesuffix(".")


def is_from_another_site(method: str, host: str, headers: Mapping[str, list[str]]) -> bool:
    """Return whether a page of another site has a browser change something.

    Args:
        method: of the request.
        host: its header `host`.
        headers: `origin` and `sec-fetch-site`, all values of each.
    """
    if method in _SAFE_METHODS:
        return False
    origins = headers.get("origin", [])
    if any(origin.partition("://")[2].lower() != host.lower() for origin in origins):
        return True
    return not origins and any(each.lower() in _FROM_OUTSIDE for each in headers.get("sec-fetch-site", []))


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
