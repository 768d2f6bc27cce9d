"""Lite subscriptions of each client, as it reported them here; brokers that do not know them are sent them (pure).

Deliveries follow the brokers' own book. This one is lost with the proxy, but clients repeat their reports every
half minute.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares
from popwheel_proxy.protocol.errors import LimitError

TOTAL_MAX = 1_000_000
"""Readers of a proxy and the lite topics that they read. Fixed: who needs more has more proxies."""
PAIRS_OF_CLIENT_MAX = 64
"""Pairs of a group and a topic of which one client reads lite topics; the official clients have one."""


class Reader(NamedTuple):
    """A client that reads lite topics.

    Args:
        group: its consumer group.
        topic: the parent topic.
        client_id: who it is.
    """

    group: str
    topic: str
    client_id: str


@dataclass(slots=True, eq=False)
class _Subscription:
    names: set[str] = field(default_factory=set)
    said_at: float = 0.0
    """Time on the monotonic clock when brokers received it last."""
    said_ms: int = 0
    """Wall-clock time when the client reported it last: a later report to another proxy supersedes it."""


class LiteSubscriptions:
    """The lite topics of each reader.

    Args:
        per_client_max: of one reader.
        total_max: of all, and each reader counts as one; groups share it.
    """

    def __init__(self, per_client_max: int, total_max: int) -> None:
        self.per_client_max = per_client_max
        self._total_max = total_max
        self._by_reader: OrderedDict[Reader, _Subscription] = OrderedDict()
        """Readers, the one reported to brokers longest ago first."""
        self._by_client: dict[str, set[Reader]] = {}
        self._counts = Shares()

    def __len__(self) -> int:
        """Return the number of lite topics read, counted for each reader."""
        return self._counts.total - len(self._by_reader)

    def __contains__(self, reader: Reader) -> bool:
        return reader in self._by_reader

    @property
    def readers(self) -> list[Reader]:
        """Lite subscriptions of all clients."""
        return list(self._by_reader)

    @property
    def reader_count(self) -> int:
        """The number of readers."""
        return len(self._by_reader)

    def of_client(self, client_id: str) -> list[Reader]:
        """The readers that a client is."""
        return list(self._by_client.get(client_id, ()))

    def count_of(self, client_id: str) -> int:
        """Return the number of lite topics that a client reads."""
        return sum(len(self._by_reader[reader].names) for reader in self._by_client.get(client_id, ()))

    def names(self, reader: Reader) -> frozenset[str]:
        """Return the lite topics of a reader; empty if it is not known."""
        known = self._by_reader.get(reader)
        return frozenset() if known is None else frozenset(known.names)

    def add(self, reader: Reader, names: Iterable[str], now: float) -> frozenset[str]:
        """Add subscriptions of a reader.

        Returns:
            Those that it did not read before.

        Raises:
            LimitError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED, they would be too many; nothing is changed.
        """
        known = self._by_reader.get(reader)
        new = frozenset(names) if known is None else frozenset(names) - known.names
        self._check(reader, 0 if known is None else len(known.names), len(new), len(new))
        if known is None:
            known = self._begin(reader)
        known.names |= new
        self.reported(reader, now)
        self._counts.take(reader.group, len(new))
        return new

    def remove(self, reader: Reader, names: Iterable[str], now: float) -> None:
        """Remove subscriptions of a reader."""
        known = self._by_reader.get(reader)
        if known is None:
            return
        gone = known.names.intersection(names)
        known.names -= gone
        self.reported(reader, now)
        self._counts.give(reader.group, len(gone))

    def replace(self, reader: Reader, names: Iterable[str], now: float) -> None:
        """Replace all subscriptions of a reader.

        Raises:
            LimitError: LITE_SUBSCRIPTION_QUOTA_EXCEEDED, they are too many; nothing is changed.
        """
        known = self._by_reader.get(reader)
        wanted = set(names)
        before = 0 if known is None else len(known.names)
        self._check(reader, 0, len(wanted), len(wanted) - before)
        if known is None:
            known = self._begin(reader)
        self._counts.give(reader.group, before)
        self._counts.take(reader.group, len(wanted))
        known.names = wanted
        self.reported(reader, now)

    def said(self, reader: Reader, said_ms: int) -> None:
        """Record the wall-clock time in ms of a client's report."""
        known = self._by_reader.get(reader)
        if known is not None:
            known.said_ms = said_ms

    def said_ms(self, reader: Reader) -> int:
        """Return the wall-clock time of a client's last report; 0 if it is not known."""
        known = self._by_reader.get(reader)
        return 0 if known is None else known.said_ms

    def reported(self, reader: Reader, now: float) -> None:
        """Record that brokers have just received a reader's report."""
        known = self._by_reader.pop(reader, None)
        if known is not None:
            known.said_at = now
            self._by_reader[reader] = known  # behind all others

    def not_said_since(self, time: float, count_max: int) -> list[Reader]:
        """Return readers that were not reported to brokers since then, the one reported longest ago first."""
        oldest = islice(self._by_reader.items(), count_max)
        return [reader for reader, known in takewhile(lambda item: item[1].said_at <= time, oldest)]

    def end(self, reader: Reader) -> None:
        """Remove a reader with all its subscriptions."""
        known = self._by_reader.pop(reader, None)
        if known is None:
            return
        self._counts.give(reader.group, 1 + len(known.names))
        of_client = self._by_client[reader.client_id]
        of_client.discard(reader)
        if not of_client:
            del self._by_client[reader.client_id]

    def _begin(self, reader: Reader) -> _Subscription:
        self._by_client.setdefault(reader.client_id, set()).add(reader)
        begun = self._by_reader[reader] = _Subscription()
        self._counts.take(reader.group)
        return begun

    def _check(self, reader: Reader, kept: int, new: int, more: int) -> None:
        """Refuse too many subscriptions: `new` ones beside `kept` ones of the reader, `more` in the whole book."""
        if kept + new > self.per_client_max:
            raise too_many(reader.topic, kept + new, self.per_client_max)
        if reader not in self._by_reader:
            more += 1
            if len(self._by_client.get(reader.client_id, ())) >= PAIRS_OF_CLIENT_MAX:
                raise LimitError(
                    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                    f"this client reads lite topics for {PAIRS_OF_CLIENT_MAX} pairs of a group and a topic, the limit; "
                    "use a client for each",
                    "lite_pairs_per_client_max",
                )
        if more > 0 and more > self._counts.room(reader.group, self._total_max):
            raise LimitError(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"the clients of the group {reader.group} read more lite topics by this proxy than its share; "
                "read fewer, or add a proxy",
                "lite_subscriptions_total_max",
            )


def too_many(topic: str, count: int, limit: int) -> LimitError:
    """Return the refusal of a client that would read more lite topics of a topic than one may."""
    return LimitError(
        Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        f"this client would read {count} lite topics of {topic}, at most {limit} are allowed; have it read fewer, or "
        "start more clients",
        "lite_subscriptions_max",
    )
