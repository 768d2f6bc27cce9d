"""Lease that decides which controller leads (pure: it is passed the time and the store's content).

The lease is a document that its holder rewrites periodically. No clocks are compared: a waiting controller measures, on
its own clock, how long the document has not changed; the holder counts from the start of its last write, and a little
less. Leading is for speed and order only: decisions are stored by compare-and-swap, so two controllers that both
believe to lead cannot overwrite one another (test_two_controllers.py).
"""

from dataclasses import dataclass

from popwheel_controller.store.state_store import Document, damaged

_BELIEF_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease as stored.

    Args:
        holder: id of one controller process; empty if none leads.
        address: host:port at which brokers and proxies reach it.
        admin: host:port of its admin API.
        turn: counts the writes.
    """

    holder: str
    address: str
    admin: str
    turn: int

    def document(self) -> Document:
        """Return the lease as a document."""
        return {"holder": self.holder, "address": self.address, "admin": self.admin, "turn": self.turn}

    @staticmethod
    def of(document: Document, source: str) -> "Lease":
        """Read a lease from its document; `source` names the place for errors.

        Raises:
            CorruptDataError: the document is malformed.
        """
        try:
            holder, address, admin = document["holder"], document["address"], document["admin"]
            if not (isinstance(holder, str) and isinstance(address, str) and isinstance(admin, str)):
                raise TypeError("a lease names its holder and two addresses")
            return Lease(holder, address, admin, int(document["turn"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(source, error) from error


class LeaseHolder:
    """Candidate for the lead; times are seconds of the monotonic clock.

    Args:
        me: id of this controller process.
        address: host:port at which brokers and proxies reach it.
        admin: host:port of its admin API.
        lease_s: duration of a lease without renewal.
    """

    def __init__(self, me: str, address: str, admin: str, lease_s: float) -> None:
        self._me = me
        self._address = address
        self._admin = admin
        self._lease_s = lease_s
        self._leads_until: float | None = None
        self._seen: tuple[str, float] | None = None
        self.lease: Lease | None = None
        """Lease as last read from the store."""

    def leads(self, now: float) -> bool:
        """Return whether this controller leads."""
        return self._leads_until is not None and now < self._leads_until

    def leads_for_s(self, now: float) -> float:
        """Return the seconds for which it remains leader without a renewal."""
        return 0.0 if self._leads_until is None else max(0.0, self._leads_until - now)

    @property
    def leader(self) -> Lease | None:
        """Lease of another controller that leads; None if the store shows none."""
        return self.lease if self.lease is not None and self.lease.holder not in ("", self._me) else None

    def is_mine(self, lease: Lease) -> bool:
        """Return whether this controller process wrote the lease."""
        return lease.holder == self._me

    def found(self, lease: Lease | None, version: str | None, now: float) -> Lease | None:
        """Process the stored lease; return the lease to write in its place, None for nothing.

        Args:
            lease: None if there is none.
            version: of the document in the store.
            now: time after the read, so that waiting never begins before the holder's write.
        """
        self.lease = lease
        turn = 1 if lease is None else lease.turn + 1
        mine = Lease(self._me, self._address, self._admin, turn)
        if lease is None or not lease.holder or lease.holder == self._me:
            return mine
        self._leads_until = None
        if self._seen is None or self._seen[0] != version:
            self._seen = (str(version), now)
            return None
        return mine if now - self._seen[1] >= self._lease_s else None

    def written(self, lease: Lease, began: float) -> None:
        """Record that the lease of `found` was stored; the write began at `began`."""
        assert self.is_mine(lease), "the written lease is another controller's"
        self.lease = lease
        self._leads_until = began + self._lease_s * _BELIEF_SHARE

    def beaten(self) -> None:
        """Record that another controller wrote first."""
        self._leads_until = None

    def released(self) -> Lease | None:
        """Return the lease to write at shutdown, so that no other has to wait; None if it does not lead."""
        if self._leads_until is None or self.lease is None:
            return None
        self._leads_until = None
        self.lease = Lease("", "", "", self.lease.turn + 1)
        return self.lease
