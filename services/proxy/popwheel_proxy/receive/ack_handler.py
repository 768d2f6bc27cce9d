"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: any proxy serves any handle.

The broker that issued a handle is read from the handle; only that broker checks it, whichever replica of it is the
master now.

When a call's outcome is unknown, it is retried (`brokers/master_calls.py`), marked as a retry. A broker remembers for
a while what was acknowledged, which new handle was issued, and by which call. The outcome of anything else is unknown.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from popwheel_common.contract import receipt
from popwheel_common.contract.names import GroupName, TopicName, Use
from popwheel_common.contract.receipt import BrokerNameReader
from popwheel_common.contract.wire_format import LENGTH_DELIMITED, field, varint
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Resource, Status
from popwheel_common.pb.apache.rocketmq.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
)
from popwheel_common.pb.popwheel.v1.broker_pb2 import (
    AckRequest,
    ChangeInvisibleRequest,
    DeadLetterRequest,
    EntryResult,
)
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.brokers.master_calls import MasterCalls, RetryRefusedError
from popwheel_proxy.protocol.errors import LimitError, NoMasterError
from popwheel_proxy.protocol.statuses import OK, status
from popwheel_proxy.protocol.validation import check_changed_invisible
from popwheel_proxy.receive.renewal import RenewalBook
from popwheel_proxy.session.resources import group_name, topic_name
from popwheel_rpc.methods import ACK, CHANGE_INVISIBLE, DEAD_LETTER
from popwheel_rpc.service import Call

_OUTCOME_UNKNOWN = "an earlier try had no answer, and this handle is not valid any more, so the outcome is unknown"
_STATUS: Final = 1
_ENTRY_TAG: Final = bytes((2 << 3 | LENGTH_DELIMITED,))
_ID_TAG: Final = bytes((1 << 3 | LENGTH_DELIMITED,))
_HANDLE_TAG: Final = bytes((2 << 3 | LENGTH_DELIMITED,))
_ENTRY_STATUS: Final = 3
_DONE: Final = field(_ENTRY_STATUS, OK.SerializeToString())


class AckHandler:
    """Forwards consumers' acknowledgements and the like to the brokers.

    Args:
        context: of the proxy; its view has the key of the handles' signature.
        masters: the way to the brokers.
        renewals: handles that are kept renewed, until they are acknowledged or changed.
    """

    def __init__(self, context: ProxyContext, masters: MasterCalls, renewals: RenewalBook) -> None:
        self._view = context.view
        self._masters = masters
        self._renewals = renewals
        self._options = context.options
        self._calls = context.numbers

    async def ack(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        """Acknowledge messages: a status for each, and on top the one that all have, or MULTIPLE_RESULTS.

        Raises:
            StatusError: the request as a whole is refused.
        """
        group, topic = _names(request.group, request.topic)
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
        handles: list[str] = []
        message_ids: list[str] = []
        for entry in entries:
            handles.append(entry.receipt_handle)
            message_ids.append(entry.message_id)
        refusals = await self._ack_all(call, group, topic, handles)
        self._renewals.drop([handle for index, handle in enumerate(handles) if index not in refusals])
        # Put together by hand, as entries that are added one by one take three times as long.
        parts = [field(_STATUS, _overall(refusals, len(handles)).SerializeToString())]
        for index, handle in enumerate(handles):
            refusal = refusals.get(index) if refusals else None
            result: bytes = _DONE if refusal is None else field(_ENTRY_STATUS, refusal.SerializeToString())
            message_id, shown = message_ids[index].encode(), handle.encode()
            length = len(message_id) + len(shown) + len(result) + 2
            id_length, shown_length = varint(len(message_id)), varint(len(shown))
            length += len(id_length) + len(shown_length)
            parts += (
                _ENTRY_TAG,
                varint(length),
                _ID_TAG,
                id_length,
                message_id,
                _HANDLE_TAG,
                shown_length,
                shown,
                result,
            )
        return AckMessageResponse.FromString(b"".join(parts))

    async def change_invisible(
        self, call: Call, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Change the invisible duration of a message; its consumer gets a new handle.

        Where no duration is asked for, it is as long as the group's back-off says for this attempt.

        Raises:
            StatusError: why it is refused.
        """
        group, topic = _names(request.group, request.topic)
        handle = request.receipt_handle
        back_off = not request.HasField("invisible_duration")
        invisible_ms = check_changed_invisible(request.invisible_duration.ToMilliseconds(), self._options.receive)
        suspend = request.suspend
        if suspend:
            self._check_suspends(topic)
        broker = self._broker_of(group, topic, handle)
        name = next(self._calls)

        def asked(outcome_unknown: bool) -> ChangeInvisibleRequest:
            return ChangeInvisibleRequest(
                group=group,
                topic=topic,
                receipt_handle=handle,
                invisible_ms=invisible_ms,
                call=name,
                is_retry=outcome_unknown,
                back_off=back_off,
                suspend=suspend,
            )

        try:
            response, _ = await self._masters.call(broker, CHANGE_INVISIBLE, asked(False), call.deadline, retry=asked)
        except RetryRefusedError as refusal:
            raise self._unknown_or_refused(group, topic, handle, refusal) from refusal
        self._renewals.drop((handle,))
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=response.receipt_handle)

    async def forward_to_dead_letter_queue(
        self, call: Call, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Move a message to its group's dead letter queue.

        Raises:
            StatusError: why it is refused.
        """
        group, topic = _names(request.group, request.topic)
        handle = request.receipt_handle
        broker = self._broker_of(group, topic, handle)
        name = next(self._calls)

        def asked(outcome_unknown: bool) -> DeadLetterRequest:
            return DeadLetterRequest(
                group=group, topic=topic, receipt_handle=handle, call=name, is_retry=outcome_unknown
            )

        try:
            await self._masters.call(broker, DEAD_LETTER, asked(False), call.deadline, retry=asked)
        except RetryRefusedError as refusal:
            raise self._unknown_or_refused(group, topic, handle, refusal) from refusal
        self._renewals.drop((handle,))
        return ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _check_suspends(self, topic: TopicName) -> None:
        """Refuse to suspend a message that is of no lite topic; the broker checks one of a topic not known here."""
        known = self._view.topics.get(topic)
        if known is not None and known.type != TopicType.LITE:
            raise StatusError(
                Code.UNSUPPORTED,
                f"only messages of lite topics can be suspended, and {topic} is not of type LITE; change the invisible "
                "duration without it",
            )

    async def _ack_all(self, call: Call, group: str, topic: str, handles: Sequence[str]) -> dict[int, Status]:
        """Acknowledge with one call per broker; return the refusals, by the index of the handle."""
        refusals: dict[int, Status] = {}
        by_broker: defaultdict[str, list[int]] = defaultdict(list)
        reader = BrokerNameReader()
        for index, handle in enumerate(handles):
            try:
                by_broker[reader.read(handle)].append(index)
            except StatusError as error:
                refusals[index] = status(error.code, error.message)
        if len(by_broker) == 1:
            broker, indexes = by_broker.popitem()
            some = [handles[index] for index in indexes]
            answers = [(indexes, await self._ack_at(call, broker, group, topic, some))]
        else:
            # All at once: a group without a master delays only its own.
            asked = by_broker.items()
            results_of = await asyncio.gather(
                *(
                    self._ack_at(call, broker, group, topic, [handles[index] for index in indexes])
                    for broker, indexes in asked
                )
            )
            answers = [(indexes, results) for (_, indexes), results in zip(asked, results_of, strict=True)]
        for indexes, results in answers:
            if results:
                for index, result in zip(indexes, results, strict=True):
                    if result.code != Code.OK:
                        refusals[index] = status(result.code, result.error)
        return refusals

    async def _ack_at(
        self, call: Call, broker: str, group: str, topic: str, handles: Sequence[str]
    ) -> Sequence[EntryResult]:
        """Acknowledge at one broker; no results if all succeeded, and a failed call is the result of each handle."""
        if broker not in self._view.brokers:
            return [self._why_away(group, topic, handle) for handle in handles]
        name = next(self._calls)

        def asked(outcome_unknown: bool) -> AckRequest:
            return AckRequest(group=group, topic=topic, receipt_handles=handles, call=name, is_retry=outcome_unknown)

        try:
            answer, outcome_unknown = await self._masters.call(broker, ACK, asked(False), call.deadline, retry=asked)
        except StatusError as refusal:
            return [EntryResult(code=refusal.code, error=refusal.message)] * len(handles)
        results = answer.results
        if outcome_unknown:
            for handle, result in zip(handles, results, strict=False):  # no results at all if all is well
                if result.code == Code.INVALID_RECEIPT_HANDLE and self._is_genuine(group, topic, handle):
                    result.code, result.error = Code.PROXY_TIMEOUT, _OUTCOME_UNKNOWN
        return results

    def _is_genuine(self, group: str, topic: str, handle: str) -> bool:
        """Return whether a handle was once valid."""
        try:
            receipt.decode(self._view.receipt_key, group, topic, handle)
        except StatusError:
            return False
        return True

    def _unknown_or_refused(self, group: str, topic: str, handle: str, refusal: RetryRefusedError) -> StatusError:
        """Return the error of a retried call that was refused, as an earlier try may have succeeded."""
        if refusal.code == Code.INVALID_RECEIPT_HANDLE and self._is_genuine(group, topic, handle):
            return StatusError(Code.PROXY_TIMEOUT, _OUTCOME_UNKNOWN)
        return refusal

    def _why_away(self, group: str, topic: str, handle: str) -> EntryResult:
        """Return why a handle of an absent broker cannot be acknowledged now."""
        try:
            broker = self._broker_of(group, topic, handle)
        except StatusError as error:
            return EntryResult(code=error.code, error=error.message)
        return EntryResult(code=Code.HA_NOT_AVAILABLE, error=f"the broker {broker} has just joined; try again")

    def _broker_of(self, group: str, topic: str, handle: str) -> str:
        """Return the broker of a handle, which is there.

        Raises:
            StatusError: INVALID_RECEIPT_HANDLE, or HA_NOT_AVAILABLE if the handle is good but its broker is away:
                clients try that again, and give up on the former.
        """
        broker = receipt.broker_name(handle)
        if broker not in self._view.brokers:
            if self._view.ready:
                receipt.decode(self._view.receipt_key, group, topic, handle)
            raise NoMasterError(broker, known=False)
        return broker


def _names(group: Resource, topic: Resource) -> tuple[GroupName, TopicName]:
    return group_name(group), topic_name(topic, Use.RECEIVE)


def _overall(refusals: Mapping[int, Status], count: int) -> Status:
    """Return the status on top of `count` entries: their own if they agree, else MULTIPLE_RESULTS."""
    if not refusals:
        return OK
    first = next(iter(refusals.values()))
    if len(refusals) == count and all(other.code == first.code for other in refusals.values()):
        return first
    return Status(code=Code.MULTIPLE_RESULTS, message="the entries have different results; see each")
