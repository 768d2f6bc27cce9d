"""Gives another replica records that it finds damaged at its own (`Broker.ReadRecords`)."""

from services.broker.replica.replica_log import ReplicaLog
from services.common import names
from services.common.errors import CorruptDataError, StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.pb.popwheel.v1.broker_pb2 import ReadRecordsRequest, ReadRecordsResponse
from services.rpc.service import Call

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
