"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: any proxy serves any handle.

The broker that gave a handle out is read from the handle; only that broker checks it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from services.common import receipt
from services.common.cluster import ClusterView
from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code, Status
from services.common.pb.apache.rocketmq.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from services.common.pb.popwheel.v1.broker_pb2 import (
    AckRequest,
    ChangeInvisibleRequest,
    DeadLetterRequest,
    EntryResult,
)
from services.proxy.brokers import Brokers
from services.proxy.limit_error import LimitError
from services.proxy.options import ProxyOptions
from services.proxy.renewal import RenewalBook
from services.proxy.resources import full_name
from services.proxy.statuses import OK, of_rpc_error, status
from services.proxy.validation import check_changed_invisible, check_group_name, check_topic_name
from services.rpc.methods import ACK, CHANGE_INVISIBLE, DEAD_LETTER
from services.rpc.service import Call, Channel
from services.rpc.status import RpcError

_DONE = AckMessageResultEntry(status=OK)


class Acking:
    """Takes consumers' word on their messages to the brokers.

    Args:
        view: for the key of the handles' signature.
        brokers: the brokers there are.
        renewals: handles that are kept renewed, and no more once they are done with.
        options: limits.
    """

    def __init__(self, view: ClusterView, brokers: Brokers, renewals: RenewalBook, options: ProxyOptions) -> None:
        self._view = view
        self._brokers = brokers
        self._renewals = renewals
        self._options = options
        self._timeout_s = options.receive.pop_timeout_ms / 1000

    async def ack(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledge messages: a status for each, and theirs on top if they all have the same.

        Raises:
            StatusError: the request as a whole is refused.
        """
        group, topic = self._names(full_name(request.group), full_name(request.topic))
        entries = request.entries
        if not entries:
            raise StatusError(Code.BAD_REQUEST, "the request names no receipt handle")
        if len(entries) > self._options.receive.acknowledgements_max:
            raise LimitError(
                Code.PAYLOAD_TOO_LARGE,
                f"the request has {len(entries)} entries, at most "
                f"{self._options.receive.acknowledgements_max} are taken at once",
                "receive.acknowledgements_max",
            )
        handles = [entry.receipt_handle for entry in entries]
        refusals = await self._ack_all(group, topic, handles)
        self._renewals.drop([handle for index, handle in enumerate(handles) if index not in refusals])
        results = [_DONE] * len(handles)
        for index, refusal in refusals.items():
            results[index] = AckMessageResultEntry(status=refusal)
        # Copies of ready-made entries that are then filled in: half the price of adding them one by one.
        response = AckMessageResponse(status=_overall(refusals, len(handles)), entries=results)
        for answered, entry, handle in zip(response.entries, entries, handles, strict=True):
            answered.message_id = entry.message_id
            answered.receipt_handle = handle
        return response

    async def change_invisible(
        self, call: Call, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Give a message a new invisible duration, and its consumer a new handle.

        Raises:
            StatusError: why not.
        """
        group, topic = self._names(full_name(request.group), full_name(request.topic))
        handle = request.receipt_handle
        invisible_ms = check_changed_invisible(request.invisible_duration.ToMilliseconds(), self._options.receive)
        broker, channel = self._way_to(group, topic, handle)
        asked = ChangeInvisibleRequest(group=group, topic=topic, receipt_handle=handle, invisible_ms=invisible_ms)
        try:
            response = await channel.call(CHANGE_INVISIBLE, asked, timeout_s=self._timeout_s)
        except RpcError as error:
            raise of_rpc_error(error, f"the broker {broker}") from error
        self._renewals.drop((handle,))
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=response.receipt_handle)

    async def forward_to_dead_letter_queue(
        self, call: Call, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Move a message to its group's dead letter queue.

        Raises:
            StatusError: why not.
        """
        group, topic = self._names(full_name(request.group), full_name(request.topic))
        handle = request.receipt_handle
        broker, channel = self._way_to(group, topic, handle)
        asked = DeadLetterRequest(group=group, topic=topic, receipt_handle=handle)
        try:
            await channel.call(DEAD_LETTER, asked, timeout_s=self._timeout_s)
        except RpcError as error:
            raise of_rpc_error(error, f"the broker {broker}") from error
        self._renewals.drop((handle,))
        return ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def _ack_all(self, group: str, topic: str, handles: Sequence[str]) -> dict[int, Status]:
        """Acknowledge, asking each broker once; the statuses of what is refused, by the place of the handle."""
        refusals: dict[int, Status] = {}
        by_broker: defaultdict[str, list[int]] = defaultdict(list)
        for index, handle in enumerate(handles):
            try:
                by_broker[receipt.broker_name(handle)].append(index)
            except StatusError as error:
                refusals[index] = status(error.code, error.message)
        for broker, indexes in by_broker.items():
            results = await self._ack_at(broker, group, topic, [handles[index] for index in indexes])
            if results:
                for index, result in zip(indexes, results, strict=True):
                    if result.code != Code.OK:
                        refusals[index] = status(result.code, result.error)
        return refusals

    async def _ack_at(self, broker: str, group: str, topic: str, handles: list[str]) -> Sequence[EntryResult]:
        """Acknowledge at one broker: no results if all is well; a failure is the result of each."""
        if broker not in self._view.brokers:
            return [self._why_away(broker, group, topic, handle) for handle in handles]
        asked = AckRequest(group=group, topic=topic, receipt_handles=handles)
        try:
            return (await self._brokers.channel(broker).call(ACK, asked, timeout_s=self._timeout_s)).results
        except StatusError as error:
            refusal = error
        except RpcError as error:
            refusal = of_rpc_error(error, f"the broker {broker}")
        return [EntryResult(code=refusal.code, error=refusal.message)] * len(handles)

    def _why_away(self, broker: str, group: str, topic: str, handle: str) -> EntryResult:
        """Why a handle of a broker that is not there cannot be acknowledged."""
        try:
            self._way_to(group, topic, handle)
        except StatusError as error:
            return EntryResult(code=error.code, error=error.message)
        return EntryResult(code=Code.HA_NOT_AVAILABLE, error=f"the broker {broker} has just come; try again")

    def _way_to(self, group: str, topic: str, handle: str) -> tuple[str, Channel]:
        """The broker of a handle.

        Raises:
            StatusError: INVALID_RECEIPT_HANDLE, or HA_NOT_AVAILABLE if the handle is good but its broker is away:
                clients try that again, and give up on the former.
        """
        broker = receipt.broker_name(handle)
        if broker not in self._view.brokers and self._view.ready:
            receipt.decode(self._view.receipt_key, group, topic, handle)
        return broker, self._brokers.channel(broker)

    def _names(self, group: str, topic: str) -> tuple[str, str]:
        check_group_name(group)
        if topic not in self._view.topics:
            check_topic_name(topic)
        return group, topic


def _overall(refusals: Mapping[int, Status], count: int) -> Status:
    """The status on top of `count` entries: their own if they agree, else MULTIPLE_RESULTS."""
    if not refusals:
        return OK
    first = next(iter(refusals.values()))
    if len(refusals) == count and all(other.code == first.code for other in refusals.values()):
        return first
    return Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results; see each")
