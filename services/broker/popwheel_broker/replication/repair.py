"""Repairs damaged records of a log from other replicas (S7): damage in the middle costs no message."""

import asyncio

import structlog

from popwheel_broker.log.raw_records import bare_records, whole_length
from popwheel_broker.replication.peers import Peers
from popwheel_broker.replication.replica_log import ReplicaLog
from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_common.clock import Clock
from popwheel_common.contract import names
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReadRecordsRequest, ReadRecordsResponse, ReplicaStatusRequest
from popwheel_rpc.methods import READ_RECORDS, REPLICA_STATUS
from popwheel_rpc.service import Call, Channel
from popwheel_rpc.status import RpcError

_log = structlog.get_logger()

_VAIN_PAUSE_MS = 5000
"""Pause before the next try for a record that no replica had."""
_VAIN_MAX = 1024


class Repairer:
    """Mends one record at a time.

    A record of another replica is the right one if it is good, says the position, and is of the epoch that wrote this
    log there: an epoch has one writer.

    Args:
        group: name of the broker group.
        log: this replica's log.
        peers: the other replicas; asked one after another.
        timeout_ms: how long each is waited for.
        clock: the time.
        statistics: what is counted.
    """

    def __init__(
        self,
        group: str,
        log: ReplicaLog,
        peers: Peers,
        timeout_ms: int,
        clock: Clock,
        statistics: ReplicationStatistics,
    ) -> None:
        self._group = group
        self._log = log
        self._peers = peers
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._statistics = statistics
        self._vain: dict[int, int] = {}
        self._mending = asyncio.Lock()

    async def repair(self, position: int) -> bool:
        """Repair the record that begins at `position`, if it is damaged; return whether it is stored and good now.

        Raises:
            OSError: this replica's device refused.
        """
        if not self._is_stored(position):
            return False  # deleted since, or a damaged entry of a queue led there
        async with self._mending:
            if not self._is_stored(position):
                return False
            if await self._is_good(position):
                return True
            now_ms = self._clock.steady_ms()
            if now_ms - self._vain.get(position, -_VAIN_PAUSE_MS) < _VAIN_PAUSE_MS:
                return False
            await self._peers.ask()
            for number, channel in list(self._peers.others()):
                data = await self._ask(number, channel, position)
                if not self._is_stored(position):
                    return False  # deleted while others were asked
                if data is not None:
                    await self._log.mend(position, data)
                    self._statistics.repaired_records += 1
                    self._statistics.repaired_bytes += len(data)
                    self._vain.pop(position, None)
                    _log.warning("a damaged record was repaired", position=position, bytes=len(data), replica=number)
                    return self._is_stored(position) and await self._is_good(position)
            if len(self._vain) >= _VAIN_MAX:
                self._vain.clear()
            if position not in self._vain:  # it is tried again every few seconds, and logged once
                _log.error("a record is damaged, and no other replica has it", position=position)
            self._vain[position] = now_ms
            self._statistics.irreparable += 1
            return False

    async def is_nowhere(self, position: int) -> bool:
        """Return whether each of the other replicas can be asked, and reports that its log ends before `position`.

        An answer of another broker at a replica's address proves nothing.
        """
        asked = False
        for number, channel in self._peers.others():
            asked = True
            try:
                answer = await channel.call(REPLICA_STATUS, ReplicaStatusRequest(), timeout_s=self._timeout_s)
            except (StatusError, RpcError) as error:
                _log.warning("a replica cannot say how far its log goes", replica=number, why=str(error))
                return False
            if (answer.group, answer.replica) != (self._group, number) or answer.end_position > position:
                return False
        return asked

    async def who_may_have(self, position: int) -> list[str]:
        """Return sentences about other replicas that may have a good record at a position, as none of them denied it.
        To be asked after `repair` has failed.
        """
        await self._peers.ask()
        if not self._peers.is_known:
            return ["those that a controller knows, and none answers"]
        request = ReadRecordsRequest(group=self._group, position=position, bytes_max=1)
        found: list[str] = []
        for number, channel in list(self._peers.others()):
            try:
                await channel.call(READ_RECORDS, request, timeout_s=self._timeout_s)
                found.append(f"replica {number} has another record there")
            except StatusError as error:
                if error.code != Code.NOT_FOUND:
                    found.append(f"replica {number}: {error.message}")
            except RpcError as error:
                found.append(f"replica {number}: {error.message}")
        return found

    def _is_stored(self, position: int) -> bool:
        return self._log.start_position <= position < self._log.end_position

    async def _is_good(self, position: int) -> bool:
        try:
            return bool(await self._log.read(position, 1))
        except (CorruptDataError, ValueError):  # damaged, or deleted while the device was read
            return False

    async def _ask(self, number: int, channel: Channel, position: int) -> bytes | None:
        """Return the bytes of the record at a position, as a replica has it; None if that is not the right one."""
        request = ReadRecordsRequest(group=self._group, position=position, bytes_max=1)
        try:
            answer = await channel.call(READ_RECORDS, request, timeout_s=self._timeout_s)
            data = answer.data[: whole_length(position, answer.data)]
            record = bare_records(position, data)[0]
        except (StatusError, RpcError, CorruptDataError) as error:
            _log.warning("a replica can't help to repair a record", replica=number, position=position, why=str(error))
            return None
        epoch, end = self._log.epochs.epoch_at(position), self._log.end_position
        if record.epoch != epoch or position + record.length > end:
            _log.warning(
                "a replica has another record there",
                replica=number,
                position=position,
                its_epoch=record.epoch,
                epoch=epoch,
                its_end=position + record.length,
                end=end,
            )
            return None
        return data[: record.length]


BYTES_MAX = 4 * 1024 * 1024


class RecordReader:
    """The handler of ReadRecords, whatever this replica's role.

    Args:
        group: name of the broker group.
        log: this replica's log.
    """

    def __init__(self, group: str, log: ReplicaLog) -> None:
        self._group = group
        self._log = log

    async def read_records(self, call: Call, request: ReadRecordsRequest) -> ReadRecordsResponse:
        """Whole, checked records from a position on; what each of them is of (position, epoch) the asker checks.

        Raises:
            StatusError: there is no good record at that position here.
        """
        names.broker_group(request.group)
        if request.group != self._group:
            raise StatusError(Code.BAD_REQUEST, f"this is a replica of {self._group}, not of {request.group}")
        log, position = self._log, request.position
        if not log.start_position <= position < log.end_position:
            raise StatusError(
                Code.NOT_FOUND,
                f"the log of this replica is from {log.start_position} to {log.end_position}; {position} is not in it",
            )
        try:
            data = await log.read(position, max(1, min(request.bytes_max, BYTES_MAX)))
        except (CorruptDataError, ValueError) as error:
            raise StatusError(Code.NOT_FOUND, f"this replica has no good record at {position}: {error}") from error
        return ReadRecordsResponse(data=data)
