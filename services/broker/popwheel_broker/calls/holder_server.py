"""Reports how many messages each consumer has in flight, and ends a delivery (docs/operate/messages.md)."""

from collections.abc import Sequence
from functools import partial
from heapq import nlargest

from popwheel_broker.calls.term_reads import TermReads
from popwheel_broker.consume.delivery import Delivery
from popwheel_broker.consume.holder import Holder
from popwheel_broker.consume.holders import Unknown
from popwheel_broker.consume.message_release import EndedDelivery, MessagePlace, MessageRelease
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.flusher import Flusher
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError
from popwheel_common.pace import Pace
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc.service import Call

_LIST_MAX = 1_000
_AT_ONCE = 1_000
"""Holders that are read in one turn of the loop, which takes about a millisecond."""


class HolderServer:
    """Serves messages in flight by holder, of popwheel.v1.Broker.

    Args:
        core: the broker's state.
        flusher: makes durable.
        reads: the reads of this term.
        clock: the time.
    """

    def __init__(self, core: BrokerCore, flusher: Flusher, reads: TermReads, clock: Clock) -> None:
        self._core = core
        self._flusher = flusher
        self._reads = reads
        self._clock = clock
        self._pace = Pace(clock)
        self._releases = MessageRelease(core.state, core.acks)

    async def summary(self, call: Call, request: pb.InFlightSummaryRequest) -> pb.InFlightSummaryResponse:
        """Return how many messages groups and their clients have in flight. Its time depends on their number alone.

        Changes during the call may be counted or not.
        """
        table = self._core.state.table
        limit = min(max(1, request.limit), _LIST_MAX)
        turns = _Turns(self._clock)
        groups = list(table.shares.by_holder.items())
        holders: list[tuple[str, Holder | Unknown]] = []
        for group, _ in groups:
            of_group = table.holders.of_group(group)
            holders += [(group, each) for each in of_group]
            await turns.spend(1 + len(of_group))
        answer = pb.InFlightSummaryResponse(
            total=table.open_messages, known_since_ms=table.holders.known_since_ms, epoch=self._core.store.epoch
        )
        in_flight = [messages for _, messages in groups]
        for number in await turns.largest(in_flight, limit):
            group = groups[number][0]
            oldest_ms = await turns.oldest_popped_ms(table.holders.of_group(group))
            answer.groups.add(
                group=group,
                in_flight=in_flight[number],
                clients=table.holders.clients_of(group),
                oldest_popped_ms=self._wall_ms(oldest_ms),
            )
        of_clients = [holder.in_flight for _, holder in holders]
        for number in await turns.largest(of_clients, limit):
            group, holder = holders[number]
            answer.clients.add(
                group=group,
                client_id=holder.client_id,
                in_flight=of_clients[number],
                oldest_popped_ms=self._wall_ms(holder.oldest_popped_ms()),
            )
            await turns.spend(1)
        answer.other_groups = len(groups) - len(answer.groups)
        answer.other_clients = len(holders) - len(answer.clients)
        return answer

    def _wall_ms(self, log_ms: int | None) -> int:
        """Return a time of the log by the wall clock; 0 for none."""
        return 0 if log_ms is None else log_ms + self._clock.wall_ms() - self._core.pop_clock.now_ms()

    async def release(self, call: Call, request: pb.InFlightReleaseRequest) -> pb.InFlightReleaseResponse:
        """End one delivery now, as if its invisible duration were over, durably; or report what that would bring.

        Raises:
            StatusError: MESSAGE_NOT_FOUND: the group does not have it in flight. PRECONDITION_FAILED: it is blocked.
        """
        names.group(request.group)
        if names.kind_of(request.topic) is names.Kind.LITE:
            names.topic(names.lite_parent(request.topic), Use.QUERY)
            names.checked_lite_topic(names.lite_of(request.topic))
        else:
            names.topic(request.topic, Use.QUERY)
        self._core.cluster_changes.apply((), (request.group,))
        place = MessagePlace(request.group, request.topic, request.queue_id, request.queue_offset)
        begin: int | None = 0
        while begin is not None:
            began_s = self._clock.monotonic()
            found, begin = self._releases.step(place, begin)
            ended = None
            if found is not None:
                delivery, index = found
                end = partial(self._end, delivery, index, is_dry_run=request.dry_run)
                ended = await self._reads.run(end)
            if ended is not None:
                if not request.dry_run:
                    await self._flusher.durable()
                return pb.InFlightReleaseResponse(
                    released=not request.dry_run,
                    message_id=ended.message_id,
                    attempt=ended.attempt,
                    dead_letter=ended.is_dead,
                    client_id=ended.client_id,
                )
            await self._pace.let_others(self._clock.monotonic() - began_s)
        raise StatusError(
            Code.MESSAGE_NOT_FOUND,
            f"{request.group} has no message {request.queue_offset} of queue {request.queue_id} of "
            f"{names.shown(request.topic)} in flight: it is acknowledged, or its invisible duration is over; "
            "list the messages in flight",
        )

    def _end(self, delivery: Delivery, index: int, *, is_dry_run: bool) -> EndedDelivery | None:
        if delivery.is_blocked:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                "no client has this message: it is blocked by its message group; release the message before it",
            )
        return self._releases.end(delivery, index, is_dry_run=is_dry_run)


class _Turns:
    """Work on many groups or holders, in turns of the loop.

    Args:
        clock: how long a turn takes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pace = Pace(clock)
        self._spent = 0
        self._began_s = clock.monotonic()

    async def spend(self, holders: int) -> None:
        """Count holders that were read, and leave the loop to others if they were many."""
        self._spent += holders
        if self._spent >= _AT_ONCE:
            await self._pace.let_others(self._clock.monotonic() - self._began_s)
            self._spent, self._began_s = 0, self._clock.monotonic()

    async def largest(self, counts: Sequence[int], limit: int) -> list[int]:
        """Return the indexes of the largest counts, the largest first."""
        found: list[tuple[int, int]] = []
        for first in range(0, len(counts), _AT_ONCE):
            part = counts[first : first + _AT_ONCE]
            found = nlargest(limit, [*found, *((count, -first - number) for number, count in enumerate(part))])
            await self.spend(len(part))
        return [-number for _, number in found]

    async def oldest_popped_ms(self, holders: Sequence[Holder | Unknown]) -> int | None:
        """Return when the oldest delivery of some holders was made (`PopClock`)."""
        oldest: int | None = None
        for first in range(0, len(holders), _AT_ONCE):
            part = holders[first : first + _AT_ONCE]
            times = [time for each in part if (time := each.oldest_popped_ms()) is not None]
            oldest = min([*times] if oldest is None else [*times, oldest], default=None)
            await self.spend(len(part))
        return oldest
