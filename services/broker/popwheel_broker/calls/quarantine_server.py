"""Requests of operators about poison messages, through the controller's admin API."""

from itertools import islice

from popwheel_broker.consume import delivered_message
from popwheel_broker.consume.quarantine_entry import QuarantineEntry
from popwheel_broker.core.core import BrokerCore
from popwheel_broker.log.fault import RECORD_STEP, RecordFaultError
from popwheel_broker.log.flusher import Flusher
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from popwheel_rpc.service import Call, Service

_LIST_MAX = 1000


class QuarantineServer:
    """Serves the quarantine's part of popwheel.v1.Broker.

    Args:
        core: the broker's state.
        flusher: makes durable.
        broker_name: for the messages that are shown.
        entries_max: limit of the quarantine.
    """

    def __init__(self, core: BrokerCore, flusher: Flusher, broker_name: str, entries_max: int) -> None:
        self._core = core
        self._flusher = flusher
        self._broker_name = broker_name
        self._entries_max = entries_max

    def bind(self, service: Service) -> None:
        """Serve the methods."""
        service.unary(methods.QUARANTINE_LIST, self.list)
        service.unary(methods.QUARANTINE_SHOW, self.show)
        service.unary(methods.QUARANTINE_RETRY, self.retry)
        service.unary(methods.QUARANTINE_DROP, self.drop)

    async def list(self, call: Call, request: pb.QuarantineListRequest) -> pb.QuarantineListResponse:
        """List the poison messages, the oldest first."""
        self._core.cluster_changes.apply()
        table = self._core.quarantine.table
        limit = min(max(1, request.limit), _LIST_MAX)
        return pb.QuarantineListResponse(
            entries=[_said(entry) for entry in islice(table, limit)], total=len(table), limit=self._entries_max
        )

    async def show(self, call: Call, request: pb.QuarantineShowRequest) -> pb.QuarantineShowResponse:
        """Return one entry, with its message if that can be read."""
        self._take_in_deletions(request.id)
        retrial = self._core.retrial
        entry = retrial.entry(request.id)
        if entry is None:
            raise StatusError(
                Code.MESSAGE_NOT_FOUND,
                f"the quarantine has no id {request.id} (any more), list it",
            )
        answer = pb.QuarantineShowResponse(entry=_said(entry))
        try:
            stored = await self._core.store.reads.run(lambda: retrial.message(entry))
            with RECORD_STEP:
                answer.message = delivered_message.pulled_message(
                    stored, delivered_message.common_properties(self._broker_name, None)
                )
        except (StatusError, CorruptDataError, RecordFaultError) as error:
            answer.unreadable = error.message if isinstance(error, StatusError) else str(error)
        return answer

    async def retry(self, call: Call, request: pb.QuarantineRetryRequest) -> pb.QuarantineRetryResponse:
        """Release a message; the answer is durable."""
        self._take_in_deletions(request.id)
        try:
            changed = await self._core.store.reads.run(lambda: self._core.retrial.retry(request.id))
        except CorruptDataError as error:
            raise StatusError(Code.INTERNAL_ERROR, f"{error}; it stays in quarantine until that is mended") from error
        await self._durable()
        return pb.QuarantineRetryResponse(changed=changed)

    async def drop(self, call: Call, request: pb.QuarantineDropRequest) -> pb.QuarantineDropResponse:
        """Drop a message for good; the answer is durable."""
        self._take_in_deletions(request.id)
        changed = self._core.retrial.drop(request.id)
        await self._durable()
        return pb.QuarantineDropResponse(changed=changed)

    def _take_in_deletions(self, entry_id: str) -> None:
        """Drop an entry whose topic or group was deleted. Raises StatusError: BAD_REQUEST; the disk is full."""
        entry = self._core.retrial.entry(entry_id)
        if entry is not None:
            self._core.cluster_changes.apply((entry.topic,), (entry.group,))

    async def _durable(self) -> None:
        await self._flusher.durable()


def _said(entry: QuarantineEntry) -> pb.QuarantineEntry:
    return pb.QuarantineEntry(
        id=entry.id,
        step=entry.step.label,
        reason=entry.reason,
        quarantined_ms=entry.quarantined_ms,
        group=entry.group,
        topic=entry.topic,
        queue_id=entry.queue_id,
        queue_offset=entry.queue_offset,
        position=entry.position,
        taken=bool(entry.origin),
    )
