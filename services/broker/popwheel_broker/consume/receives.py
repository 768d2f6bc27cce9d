"""The receives that have messages of ordered groups: a retried receive shares them with its earlier tries.

Each try is a receive of its own at some proxy, and the end of one releases nothing that another one has, too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from popwheel_broker.consume.delivery import Delivery
from popwheel_common.pb.popwheel.v1.broker_pb2 import PopRequest
from popwheel_common.shares import Shares

ATTEMPTS_MAX = 10_000
"""Limit of tracked tries of receives, the latest ones of each group; groups share it. Also of deliveries that several
tries have.
"""

_SHARERS_MAX = 16
"""Limit of distinguished receives of one delivery; with more it is not released, and is redelivered when it is due.
"""


class Receives:
    """Receives of ordered groups, by attempt id and by delivery. In memory only."""

    def __init__(self) -> None:
        self._attempts: dict[str, OrderedDict[bytes, tuple[int, tuple[int, ...]]]] = {}
        """Latest receive of a try, with the ids of its deliveries, by group and by what names a try, the oldest
        first.
        """
        self._counts = Shares()
        self._shared: OrderedDict[int, set[int]] = OrderedDict()
        """Receives that still have a delivery that several got, by its id."""
        self._first: int | None = None
        """The first delivery whose receives are all known."""

    def __len__(self) -> int:
        """Return the number of tracked tries, of `ATTEMPTS_MAX`."""
        return self._counts.total

    @property
    def shared(self) -> int:
        """Number of deliveries that several receives have, of `ATTEMPTS_MAX`."""
        return len(self._shared)

    def given_before(self, request: PopRequest) -> tuple[int, ...]:
        """Return the ids of the deliveries that this try has got before, open or not."""
        if not request.attempt_id:
            return ()
        tries = self._attempts.get(request.group)
        return () if tries is None else tries.get(_key(request), (0, ()))[1]

    def add(self, request: PopRequest, deliveries: Sequence[Delivery]) -> None:
        """Record that a try has got messages for the first time; none of groups that do not consume in order."""
        if not request.attempt_id or not deliveries:
            return
        self._put(request, tuple(each.id for each in deliveries))
        if self._first is None:
            self._first = deliveries[0].id

    def share(self, request: PopRequest, deliveries: Sequence[Delivery]) -> None:
        """Record that a try has got deliveries of an earlier receive, which has them as well."""
        earlier, identities = self._attempts[request.group][_key(request)]
        for each in deliveries:
            sharers = self._shared.setdefault(each.id, {earlier})
            if len(sharers) < _SHARERS_MAX:
                sharers.add(request.receive)
            else:
                sharers.add(0)  # which never ends
        while len(self._shared) > ATTEMPTS_MAX:
            forgotten, _ = self._shared.popitem(last=False)
            self._first = max(self._first or 0, forgotten + 1)
        self._put(request, identities)

    def ended(self, delivery: Delivery, receive: int) -> bool:
        """Take a delivery from a receive that has ended.

        Returns:
            Whether no other receive is known to have it: then it may be released.
        """
        sharers = self._shared.get(delivery.id)
        if sharers is not None:
            sharers.discard(receive)
            return not sharers
        # Deliveries of an earlier master may be shared, and only that master knew; so may forgotten ones.
        return not delivery.lines or (self._first is not None and delivery.id >= self._first)

    def _put(self, request: PopRequest, identities: tuple[int, ...]) -> None:
        group, key = request.group, _key(request)
        if key not in self._attempts.get(group, ()):
            if not self._counts.room(group, ATTEMPTS_MAX):
                self._forget_try(group if group in self._attempts else next(iter(self._attempts)))
            self._counts.take(group)
        tries = self._attempts.setdefault(group, OrderedDict())
        tries[key] = request.receive, identities
        tries.move_to_end(key)

    def _forget_try(self, group: str) -> None:
        tries = self._attempts[group]
        tries.popitem(last=False)
        self._counts.give(group)
        if not tries:
            del self._attempts[group]


def _key(request: PopRequest) -> bytes:
    return blake2b(f"{request.topic} {request.attempt_id}".encode(), digest_size=16).digest()
