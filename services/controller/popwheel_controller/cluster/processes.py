"""List of the registered brokers and proxies for operators: names, addresses, start times (pure).

Kept in memory only: brokers are listed by the streams that register them, proxies by the stream on which they watch the
cluster. So a process that has ended or hangs is dropped when its stream ends.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address

from popwheel_common.pb.popwheel.v1.controller_pb2 import WatchRequest

_EVERYWHERE = ("0.0.0.0", "[::]")


@dataclass(frozen=True, slots=True, eq=False)
class Watching:
    """Stream of a process that watches the cluster.

    Args:
        request: with which the process introduced itself.
        peer: address of the caller, `127.0.0.1:40312`; `local` within one process.
        since_ms: start of the stream, wall clock.
    """

    request: WatchRequest
    peer: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Registration:
    """A replica of a broker group that is registered.

    Args:
        group: name of the broker group.
        replica: its number.
        address: host:port at which it is reached.
        since_ms: start of the stream, wall clock.
        role: `master` or `slave`; empty if it has none.
    """

    group: str
    replica: int
    address: str
    since_ms: int
    role: str


@dataclass(frozen=True, slots=True)
class Member:
    """A broker or proxy.

    Args:
        kind: `broker` or `proxy`.
        name: of the process.
        address: its advertised host:port; empty if it has none.
        pid: its number, if it runs on the controller's machine.
        since_ms: time of its registration, wall clock.
        health: host:port at which it can be asked whether it is ready; empty if it cannot.
        trouble: problem that the controller sees; empty if there is none.
        replica: number of a broker within its group, whose name it has; None of a proxy.
        role: `master` or `slave`; empty of a proxy, and of a broker without a role.
        is_within: whether it runs within the controller's process.
    """

    kind: str
    name: str
    address: str
    pid: int | None
    since_ms: int
    health: str
    trouble: str = ""
    replica: int | None = None
    role: str = ""
    is_within: bool = False


class Processes:
    """Registry of all watching processes."""

    def __init__(self) -> None:
        self._watching: dict[Watching, None] = {}

    def register(self, request: WatchRequest, peer: str, now_ms: int) -> Watching:
        """Record a new watch, until `left`."""
        watching = Watching(request, peer, now_ms)
        self._watching[watching] = None
        return watching

    def left(self, watching: Watching) -> None:
        """Record that its stream has ended."""
        self._watching.pop(watching, None)

    def members(self, registrations: Iterable[Registration]) -> list[Member]:
        """Return all brokers, then all proxies, by name.

        Args:
            registrations: of all replicas.
        """
        watching = {(each.request.process, each.request.replica): each for each in self._of(WatchRequest.BROKER)}
        registered = {(each.group, each.replica): each for each in registrations}
        found = [_broker(key, registered.get(key), watching.get(key)) for key in registered.keys() | watching.keys()]
        found += [_member("proxy", each, each.request.address) for each in self._of(WatchRequest.PROXY)]
        return sorted(
            found, key=lambda member: (member.kind, _natural(member.name), member.replica or 0, member.since_ms)
        )

    def _of(self, kind: WatchRequest.Kind.ValueType) -> Iterator[Watching]:
        return (watching for watching in self._watching if watching.request.kind == kind)


def _broker(key: tuple[str, int], registration: Registration | None, watching: Watching | None) -> Member:
    name, replica = key
    if registration is None:
        assert watching is not None
        return replace(
            _member("broker", watching, watching.request.address, trouble="it is not registered"), replica=replica
        )
    if watching is None:  # of an older release, or between two streams
        member = Member("broker", name, registration.address, None, registration.since_ms, "")
    else:
        member = _member("broker", watching, registration.address, registration.since_ms)
    return replace(member, replica=replica, role=registration.role)


def _member(kind: str, watching: Watching, address: str, since_ms: int | None = None, trouble: str = "") -> Member:
    request = watching.request
    host = watching.peer.rpartition(":")[0]
    return Member(
        kind=kind,
        name=request.process,
        address=_reached(address, host),
        pid=request.pid if request.pid and _is_here(host) else None,
        since_ms=watching.since_ms if since_ms is None else since_ms,
        health=f"{host}:{request.http_port}" if host and request.http_port else "",
        trouble=trouble,
        is_within=not host,
    )


def _reached(address: str, host: str) -> str:
    """Return the address of a process; one that listens on all addresses is reached at the host that it called from."""
    listens, _, port = address.rpartition(":")
    return f"{host}:{port}" if host and listens in _EVERYWHERE else address


def _is_here(host: str) -> bool:
    """Return whether a caller's host is this machine; a caller without a host is this process."""
    try:
        return not host or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key by which broker-10 comes after broker-9."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    return letters, int(digits or 0), name
