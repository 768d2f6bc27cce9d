"""Clients of this proxy: their users, their last calls, and which have gone (pure).

A client is known by its id; a connection says nothing, as it may have several and share them. It is gone when it says
so or after a long silence. It is also gone when its last open call has broken and it does not call again within the
grace.
"""

from dataclasses import dataclass

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.session.client_facts import FILTER_LENGTH_MAX, NAMES_MAX, UNKNOWN, ClientFacts

LOST_AT_ONCE_MAX = 5_000
"""Clients found to be gone in one scan; the next scan finds more."""
FACTS_BYTES_MAX = 64 * 1024 * 1024
"""Approximate memory of clients' topic lists; of further lists only the lengths are stored."""
USES_MAX = 200_000
"""Limit of the stored pairs of a client and a topic that it polls or sends to; further ones are not shown."""


@dataclass(slots=True)
class KnownClient:
    """A client.

    Args:
        seen_at: its last sign of life, in seconds of the monotonic clock.
        user: whose it is.
        since: its first call, likewise.
        reads_lite: whether it is a consumer of lite topics; None if unknown.
        facts: its settings.
        address: of its latest connection that is known.
        polls: when it last polled for a group, topic and filter.
        sends: topics that it sends to.
    """

    seen_at: float
    user: str
    since: float
    reads_lite: bool | None
    facts: ClientFacts
    address: str
    polls: dict[tuple[str, str, str], float]
    sends: dict[str, None]


class Clients:
    """Client ids and the time of their last sign of life (pure; it is passed the time).

    Args:
        clients_max: limit of their number.
        expiry_s: a client that has not called for this long is gone.
        grace_s: the same for one whose last open call has broken.
    """

    def __init__(self, clients_max: int, expiry_s: float, grace_s: float) -> None:
        self._clients_max = clients_max
        self._expiry_s = expiry_s
        self._grace_s = grace_s
        self._clients: dict[str, KnownClient] = {}  # the one seen longest ago first
        self._open_calls: dict[tuple[str, str], int] = {}
        """Open Telemetry streams and polls, by client id and user."""
        self._broken_at: dict[str, float] = {}
        """Clients whose last open call has broken and that have not called since, in that order."""
        self._lite_count = 0
        self._facts_bytes = Shares()  # by client
        self._uses = 0
        self.libraries: dict[tuple[str, str], int] = {}
        """Number of clients by language and version, as far as reported."""

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def broken(self) -> int:
        """Clients whose last open call has broken and that have not called since."""
        return len(self._broken_at)

    def user_of(self, client_id: str) -> str | None:
        """The user of a client; empty where users are not checked, None if the client is not known."""
        known = self._clients.get(client_id)
        return None if known is None else known.user

    def seen(self, client_id: str, now: float, user: str = "") -> None:
        """Record a sign of life: a heartbeat, settings or a poll.

        Args:
            client_id: who it is.
            now: seconds of the monotonic clock.
            user: whose it is from now on, if it is new; empty where users are not checked.

        Raises:
            StatusError: FORBIDDEN, it is another user's.
            LimitError: TOO_MANY_REQUESTS, if it is new and there are too many.
        """
        known = self._clients.get(client_id)
        if known is None:
            if len(self._clients) >= self._clients_max:
                raise LimitError(
                    Code.TOO_MANY_REQUESTS, "this proxy has too many clients; try again later", "client.sessions_max"
                )
            self._clients[client_id] = KnownClient(now, user, now, None, UNKNOWN, "", {}, {})
            return
        if known.user != user:
            raise foreign_client()
        known.seen_at = now
        self._clients[client_id] = self._clients.pop(client_id)  # behind all others
        self._broken_at.pop(client_id, None)

    @property
    def facts_bytes(self) -> int:
        """Approximate memory of the lists of topics that clients sent."""
        return self._facts_bytes.total

    @property
    def uses(self) -> int:
        """Pairs of a client and a topic that it polls or sends to."""
        return self._uses

    @property
    def ids(self) -> list[str]:
        """Ids of all clients."""
        return list(self._clients)

    def get(self, client_id: str) -> KnownClient | None:
        """Return a client, which only this class changes; None if unknown."""
        return self._clients.get(client_id)

    def open_calls(self, client_id: str, user: str) -> int:
        """Return the number of a client's open Telemetry streams and polls."""
        return self._open_calls.get((client_id, user), 0)

    def says(self, client_id: str, facts: ClientFacts, address: str) -> None:
        """Record the settings of a client; an unknown client is ignored."""
        known = self._clients.get(client_id)
        if known is None:
            return
        self._forget_facts(client_id, known)
        size = facts.bytes
        if size > self._facts_bytes.room(client_id, FACTS_BYTES_MAX):
            facts, size = facts.without_lists(), 0
        self._facts_bytes.take(client_id, size)
        known.facts, known.address = facts, address
        if facts.language:
            library = facts.language, facts.version
            self.libraries[library] = self.libraries.get(library, 0) + 1

    def polls(self, client_id: str, address: str, group: str, topic: str, text: str, now: float) -> None:
        """Record the time of a client's poll; of different polls a limited number is stored.

        Args:
            client_id: who it is.
            address: its address.
            group, topic, text: group, topic and filter of the poll.
            now: seconds of the monotonic clock.
        """
        known = self._clients.get(client_id)
        if known is None:
            return
        known.address = address
        poll = group, topic, text if len(text) <= FILTER_LENGTH_MAX else text[:FILTER_LENGTH_MAX]
        if poll not in known.polls:
            if len(known.polls) >= NAMES_MAX:
                oldest = min(known.polls, key=lambda each: known.polls[each])
                del known.polls[oldest]
                self._uses -= 1
            if self._uses >= USES_MAX:
                return
            self._uses += 1
        known.polls[poll] = now

    def sends(self, client_id: str, topic: str) -> None:
        """Record that a client sends to a topic."""
        known = self._clients.get(client_id)
        if known is not None and topic not in known.sends and len(known.sends) < NAMES_MAX and self._uses < USES_MAX:
            known.sends[topic] = None
            self._uses += 1

    def _forget_facts(self, client_id: str, known: KnownClient) -> None:
        self._facts_bytes.give(client_id, self._facts_bytes.share(client_id))
        if known.facts.language:
            library = known.facts.language, known.facts.version
            self.libraries[library] -= 1
            if not self.libraries[library]:
                del self.libraries[library]

    def is_alive(self, client_id: str, now: float) -> bool:
        """Return whether a client's last call is not too long ago."""
        known = self._clients.get(client_id)
        return known is not None and now - known.seen_at < self._expiry_s

    def is_of(self, client_id: str, *, lite: bool) -> None:
        """Record whether a client is a consumer of lite topics; an unknown client is ignored."""
        known = self._clients.get(client_id)
        if known is not None:
            self._lite_count += lite - bool(known.reads_lite)
            known.reads_lite = lite

    @property
    def any_lite(self) -> bool:
        """True if any client is a consumer of lite topics."""
        return self._lite_count > 0

    def reads_lite(self, client_id: str) -> bool | None:
        """Return whether a client is a consumer of lite topics; None if unknown."""
        known = self._clients.get(client_id)
        return None if known is None else known.reads_lite

    def call_opened(self, client_id: str, user: str = "") -> None:
        """Record that a Telemetry stream or a poll begins; `call_closed` must follow, with the same user."""
        key = client_id, user
        self._open_calls[key] = self._open_calls.get(key, 0) + 1

    def call_closed(self, client_id: str, now: float, user: str = "", *, broken: bool) -> None:
        """Record that a Telemetry stream or a poll has ended.

        Args:
            client_id, user: as in `call_opened`; one that another user opened does not concern the client.
            now: seconds of the monotonic clock.
            broken: whether its client has ended it, or has gone.
        """
        key = client_id, user
        left = self._open_calls[key] - 1
        if left:
            self._open_calls[key] = left
            return
        del self._open_calls[key]
        if broken and self.user_of(client_id) == user:
            self._broken_at.setdefault(client_id, now)

    def remove(self, client_id: str) -> None:
        """Remove a client that terminates."""
        known = self._clients.pop(client_id, None)
        if known is not None:
            self._lite_count -= bool(known.reads_lite)
            self._uses -= len(known.polls) + len(known.sends)
            self._forget_facts(client_id, known)
        self._broken_at.pop(client_id, None)

    def expire(self, now: float) -> list[str]:
        """Remove clients that have gone without a goodbye.

        Returns:
            Their ids, of `LOST_AT_ONCE_MAX` clients at the most.
        """
        ended: list[str] = []
        while self._broken_at and len(ended) < LOST_AT_ONCE_MAX:
            client_id, since = next(iter(self._broken_at.items()))
            if now - since < self._grace_s:
                break
            if (client_id, self._clients[client_id].user) in self._open_calls:  # it has come back
                del self._broken_at[client_id]
                continue
            self.remove(client_id)
            ended.append(client_id)
        while self._clients and len(ended) < LOST_AT_ONCE_MAX:
            client_id, known = next(iter(self._clients.items()))
            if now - known.seen_at < self._expiry_s:
                break
            self.remove(client_id)
            ended.append(client_id)
        return ended


def foreign_client() -> StatusError:
    """Return the refusal of a call under a client id that another user has."""
    return StatusError(
        Code.FORBIDDEN,
        "this client id is in use by another user; give the client an id of its own, as official clients do, or stop "
        "the other client first",
    )
