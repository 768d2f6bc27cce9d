"""Probes of the processes at the addresses of replicas."""

from collections.abc import Callable

from popwheel_common.errors import InconsistentClusterIdError, StatusError
from popwheel_common.pb.popwheel.v1.broker_pb2 import ReplicaStatusRequest, ReplicaStatusResponse
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ReplicaReport
from popwheel_rpc.methods import REPLICA_STATUS
from popwheel_rpc.service import Channel
from popwheel_rpc.status import GrpcStatus, RpcError


class AnotherThereError(Exception):
    """Failed probe: no process, or another one, answers at a replica's address.

    Args:
        why: the reason, in a sentence.
        is_late: whether the probe timed out.
    """

    def __init__(self, why: str, *, is_late: bool = False) -> None:
        super().__init__(why)
        self.is_late = is_late


class ReplicaProbe:
    """Prober of replicas.

    Args:
        broker_channels: opens a channel to a replica; one per probe.
        timeout_s: of a probe, in seconds.
    """

    def __init__(self, broker_channels: Callable[[BrokerInfo], Channel], timeout_s: float) -> None:
        self._broker_channels = broker_channels
        self._timeout_s = timeout_s

    async def finds(self, group: str, number: int, address: str) -> bool | None:
        """Probe an address: True if the answer may come from this replica; None without an answer in time.

        Args:
            group: name of its group.
            number: its own.
            address: host:port.
        """
        try:
            answer = await self._ask(group, address)
        except InconsistentClusterIdError:
            return False
        except StatusError:
            return True
        except RpcError as error:
            if error.status is GrpcStatus.DEADLINE_EXCEEDED:
                return None
            return error.status is not GrpcStatus.UNAVAILABLE
        return (answer.group, answer.replica) in ((group, number), ("", 0))

    async def check(self, report: ReplicaReport) -> None:
        """Check that the reporting process still exists.

        Raises:
            AnotherThereError: another process answers, or none.
        """
        try:
            answer = await self._ask(report.group, report.address)
        except (StatusError, RpcError) as error:
            is_late = isinstance(error, RpcError) and error.status is GrpcStatus.DEADLINE_EXCEEDED
            raise AnotherThereError(str(error), is_late=is_late) from error
        same = (answer.group, answer.replica, answer.identity, answer.suspect) == (
            report.group,
            report.replica,
            report.identity,
            report.suspect,
        )
        if report.suspect:
            same &= (answer.last_epoch, answer.end_position) == (report.last_epoch, report.end_position)
        if not same:
            raise AnotherThereError("another process is there, or its log has changed")

    async def _ask(self, group: str, address: str) -> ReplicaStatusResponse:
        channel = self._broker_channels(BrokerInfo(name=group, address=address))
        try:
            return await channel.call(REPLICA_STATUS, ReplicaStatusRequest(), timeout_s=self._timeout_s)
        finally:
            await channel.close()
