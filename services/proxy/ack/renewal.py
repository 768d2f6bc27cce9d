"""Keeps messages invisible for push consumers that asked for auto_renew, for as long as they show signs of life.

`RenewalBook` decides; `Renewal` makes the calls. A handle is renewed whenever a third of its invisible duration has
passed, so that one failed try does no harm, until it is acknowledged or given back, its client is gone, or it was kept
for the longest time allowed. In that case it is as if its consumer had failed: it comes again by its group's back-off.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.common.clock import Clock
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.broker_pb2 import RenewEntry, RenewRequest
from services.common.shares import Shares
from services.proxy.background import Background
from services.proxy.errors import LimitError
from services.proxy.failover.master_calls import MasterCalls
from services.proxy.metrics import ProxyMetrics
from services.proxy.options import RenewalOptions
from services.proxy.session.clients import Clients
from services.rpc.methods import RENEW

_BATCH_MAX = 1_000
"""Handles in one Renew."""


@dataclass(slots=True, eq=False)
class RenewedHandle:
    """One handle that is kept renewed.

    Args:
        client_id: for whom.
        broker: who gave it out.
        entry: group, topic and handle.
        until: when renewing ends in any case, in seconds of the monotonic clock.
        due: when it is next to be renewed.
    """

    client_id: str
    broker: str
    entry: RenewEntry
    until: float
    due: float


class RenewalBook:
    """The handles that are kept renewed. Told the time; does no I/O.

    Args:
        options: durations and limits.
    """

    def __init__(self, options: RenewalOptions) -> None:
        self._options = options
        self._interval_s = options.invisible_ms / 3000
        self._handles: dict[str, RenewedHandle] = {}  # by handle; the one due first stands first
        self._shares = Shares()  # by client

    def __len__(self) -> int:
        return len(self._handles)

    def check_room(self, client_id: str, count: int) -> None:
        """Refuse a receive whose handles could not be kept renewed.

        Raises:
            LimitError: TOO_MANY_REQUESTS.
        """
        if count > self._shares.room(client_id, self._options.handles_max):
            raise LimitError(
                Code.TOO_MANY_REQUESTS,
                f"{len(self)} messages are kept invisible, {self._shares.held(client_id)} of them for this client: "
                "that is its share; acknowledge some, and receive again",
                "renewal.handles_max",
            )

    def add(self, client_id: str, broker: str, group: str, topic: str, handles: Sequence[str], now: float) -> None:
        """Keep handles renewed from now on."""
        until = now + self._options.longest_ms / 1000
        for handle in handles:
            self._drop(handle)
            self._shares.take(client_id)
            entry = RenewEntry(group=group, topic=topic, receipt_handle=handle)
            self._handles[handle] = RenewedHandle(client_id, broker, entry, until, now + self._interval_s)

    def drop(self, handles: Sequence[str]) -> None:
        """Renew these no more: acknowledged, given back, or refused by the broker."""
        for handle in handles:
            self._drop(handle)

    def _drop(self, handle: str) -> None:
        renewed = self._handles.pop(handle, None)
        if renewed is not None:
            self._shares.give(renewed.client_id)
            assert self._shares.total == len(self._handles), "the shares of clients are not what is kept (M1)"

    def due(self, now: float, is_alive: Callable[[str], bool]) -> dict[str, list[RenewEntry]]:
        """What is to be renewed now, by broker, those that were kept for the longest time once more, to back off; the
        handles of clients that are gone are dropped instead.
        """
        batches: defaultdict[str, list[RenewEntry]] = defaultdict(list)
        while self._handles:
            handle, renewed = next(iter(self._handles.items()))
            if renewed.due > now:
                break
            if not is_alive(renewed.client_id):
                self._drop(handle)
                continue
            if now < renewed.until:
                renewed.due = now + self._interval_s
                self._handles[handle] = self._handles.pop(handle)  # behind all others
            else:
                self._drop(handle)
                renewed.entry.back_off = True
            batches[renewed.broker].append(renewed.entry)
        return dict(batches)


class Renewal:
    """Makes the calls that the book asks for.

    Args:
        book: what is kept renewed.
        clients: who is alive.
        masters: the way to the brokers.
        options: durations and limits.
        clock: for what is due.
        background: where the calls run.
        metrics: what is counted.
    """

    def __init__(
        self,
        book: RenewalBook,
        clients: Clients,
        masters: MasterCalls,
        options: RenewalOptions,
        clock: Clock,
        background: Background,
        metrics: ProxyMetrics,
    ) -> None:
        self._book = book
        self._clients = clients
        self._masters = masters
        self._options = options
        self._clock = clock
        self._background = background
        self._metrics = metrics

    def tick(self) -> None:
        """Renew what is due; called about once a second."""
        now = self._clock.monotonic()
        for broker, entries in self._book.due(now, lambda client_id: self._clients.is_alive(client_id, now)).items():
            for start in range(0, len(entries), _BATCH_MAX):
                self._background.start(self._renew(broker, entries[start : start + _BATCH_MAX]))

    async def _renew(self, broker: str, entries: list[RenewEntry]) -> None:
        """Renew handles of one broker; those it does not know any more are dropped."""
        request = RenewRequest(entries=entries, invisible_ms=self._options.invisible_ms)
        deadline = self._clock.monotonic() + self._options.invisible_ms / 3000
        try:
            response, _ = await self._masters.call(broker, RENEW, request, deadline)
        except StatusError:
            self._metrics.renewal_failures.inc()  # it is tried again before the invisible duration ends
            return
        refused = [
            entry.receipt_handle
            for entry, result in zip(entries, response.results, strict=False)
            if result.code == Code.INVALID_RECEIPT_HANDLE
        ]
        self._book.drop(refused)
        self._metrics.renewals.inc(len(entries) - len(refused))
        self._metrics.renewals_ended.inc(sum(entry.back_off for entry in entries))
