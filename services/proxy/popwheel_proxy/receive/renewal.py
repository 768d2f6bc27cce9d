"""Keeps messages invisible for push consumers that asked for auto_renew, for as long as they show signs of life.

`RenewalBook` decides; `Renewal` makes the calls. A handle is renewed whenever a third of its invisible duration has
passed, so that one failed try does no harm, until it is acknowledged or released, its client is gone, or it was renewed
for the longest time allowed. Then it is treated as failed: it is delivered again after its group's back-off.

Messages of a client that has gone are released: other consumers get them at once, and they count as an attempt.
Handles with an invisible duration that their consumer chose are not renewed here.

Several receives may get the same handle, as retries of one attempt id, here or at other proxies. The latest receive
here owns it in this book, and the end of an earlier one does not remove it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReleaseRequest, RenewEntry, RenewRequest
from popwheel_common.shares import Shares
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.brokers.master_calls import MasterCalls
from popwheel_proxy.options import RenewalOptions
from popwheel_proxy.protocol.errors import LimitError
from popwheel_rpc.methods import RELEASE, RENEW

_BATCH_MAX = 1_000
"""Handles in one Renew, and in one step of the loop."""
_RELEASED_AT_ONCE_MAX = 16
"""Handles of a client that are released at a time: their broker reads the messages and stores them once more."""
_RELEASE_WITHIN_S = 10.0


@dataclass(slots=True, eq=False)
class RenewedHandle:
    """A handle that is kept renewed.

    Args:
        client_id: for whom.
        broker: the broker that issued it.
        receive: which receive has it, as brokers know it; 0 if only one can.
        entry: group, topic and handle.
        until: when renewing ends in any case, in seconds of the monotonic clock.
        due: when it is next to be renewed.
    """

    client_id: str
    broker: str
    receive: int
    entry: RenewEntry
    until: float
    due: float


class RenewalBook:
    """Handles that are kept renewed (pure; it is passed the time).

    Args:
        options: durations and limits.
    """

    def __init__(self, options: RenewalOptions) -> None:
        self._options = options
        self._interval_s = options.invisible_ms / 3000
        self._handles: dict[str, RenewedHandle] = {}  # by handle; the one due first stands first
        self._by_client: dict[str, dict[str, None]] = {}
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
                f"{len(self)} messages are kept invisible, {self._shares.share(client_id)} of them for this client: "
                "that is its share; acknowledge some, and receive again",
                "renewal.handles_max",
            )

    def add(
        self, client_id: str, broker: str, group: str, topic: str, handles: Sequence[str], now: float, receive: int = 0
    ) -> None:
        """Renew handles from now on; the receive takes over those of its earlier tries."""
        until = now + self._options.longest_ms / 1000
        for handle in handles:
            self._drop(handle)
            self._shares.take(client_id)
            self._by_client.setdefault(client_id, {})[handle] = None
            entry = RenewEntry(group=group, topic=topic, receipt_handle=handle)
            self._handles[handle] = RenewedHandle(client_id, broker, receive, entry, until, now + self._interval_s)

    def drop(self, handles: Sequence[str]) -> None:
        """Stop renewing these: they were acknowledged, released, or refused by the broker."""
        for handle in handles:
            self._drop(handle)

    def drop_of(self, receive: int, handles: Sequence[str]) -> None:
        """Stop renewing the handles of a failed receive, except those that a later try owns."""
        for handle in handles:
            renewed = self._handles.get(handle)
            if renewed is not None and renewed.receive == receive:
                self._drop(handle)

    def handles_of(self, client_id: str, count: int) -> tuple[int, list[tuple[RenewedHandle, float]]]:
        """Return the number of a client's handles, and the first `count` of them with the times since when."""
        handles = self._by_client.get(client_id, {})
        longest_s = self._options.longest_ms / 1000
        some = [self._handles[handle] for handle in islice(handles, count)]
        return len(handles), [(each, each.until - longest_s) for each in some]

    def take(self, client_id: str, count: int) -> list[RenewedHandle]:
        """Remove handles of a client, `count` at the most, which are renewed no more.

        Returns:
            These handles; none if the client has no more.
        """
        handles = list(islice(self._by_client.get(client_id, ()), count))
        taken = [self._handles[handle] for handle in handles]
        self.drop(handles)
        return taken

    def _drop(self, handle: str) -> None:
        renewed = self._handles.pop(handle, None)
        if renewed is not None:
            of_client = self._by_client[renewed.client_id]
            del of_client[handle]
            if not of_client:
                del self._by_client[renewed.client_id]
            self._shares.give(renewed.client_id)
            assert self._shares.total == len(self._handles), "the shares of clients are not what is kept (M1)"

    def due(self, now: float) -> dict[str, list[RenewEntry]]:
        """Return the handles that are due now, by broker, a thousand at the most.

        Those that were kept for the longest time are renewed once more, to back off.
        """
        batches: defaultdict[str, list[RenewEntry]] = defaultdict(list)
        for _ in range(_BATCH_MAX):
            if not self._handles:
                break
            handle, renewed = next(iter(self._handles.items()))
            if renewed.due > now:
                break
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
        context: of the proxy.
        book: what is kept renewed.
        masters: the way to the brokers.
    """

    def __init__(self, context: ProxyContext, book: RenewalBook, masters: MasterCalls) -> None:
        self._book = book
        self._masters = masters
        self._options = context.options.renewal
        self._clock = context.clock
        self._background = context.background
        self._metrics = context.metrics
        self._is_renewing = False

    def tick(self) -> None:
        """Renew the handles that are due; called about once a second."""
        if not self._is_renewing:
            self._is_renewing = True
            self._background.start(self._renew_due())

    async def _renew_due(self) -> None:
        """Begin to renew all that is due, a part in each turn of the loop."""
        try:
            while batches := self._book.due(self._clock.monotonic()):
                for broker, entries in batches.items():
                    self._background.start(self._renew(broker, entries))
                await asyncio.sleep(0)
        finally:
            self._is_renewing = False

    def release(self, client_id: str, *, is_goodbye: bool) -> None:
        """Release the messages of a client that has gone.

        Args:
            client_id: who it is.
            is_goodbye: whether it has terminated. Else it may be at another proxy now, where a receive was retried: the
                messages of that receive are not released.
        """
        self._background.start(self._release_all(client_id, is_goodbye))

    async def _release_all(self, client_id: str, is_goodbye: bool) -> None:
        by_broker: defaultdict[str, list[RenewedHandle]] = defaultdict(list)
        while taken := self._book.take(client_id, _BATCH_MAX):
            for each in taken:
                by_broker[each.broker].append(each)
            await asyncio.sleep(0)
        await asyncio.gather(*(self._release_at(broker, handles, is_goodbye) for broker, handles in by_broker.items()))

    async def _release_at(self, broker: str, handles: Sequence[RenewedHandle], is_goodbye: bool) -> None:
        """Release handles of one broker; if it does not answer, their invisible durations run out."""
        for start in range(0, len(handles), _RELEASED_AT_ONCE_MAX):
            requests: dict[tuple[str, str, int], ReleaseRequest] = {}
            for each in handles[start : start + _RELEASED_AT_ONCE_MAX]:
                entry, receive = each.entry, 0 if is_goodbye else each.receive
                asked = ReleaseRequest(group=entry.group, topic=entry.topic, attempted=True, receive=receive)
                request = requests.setdefault((entry.group, entry.topic, receive), asked)
                request.receipt_handles.append(entry.receipt_handle)
            for request in requests.values():
                try:
                    await self._masters.call(broker, RELEASE, request, self._clock.monotonic() + _RELEASE_WITHIN_S)
                except StatusError:
                    self._metrics.release_failures.inc()
                    return
                self._metrics.released_of_lost.inc(len(request.receipt_handles))

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
