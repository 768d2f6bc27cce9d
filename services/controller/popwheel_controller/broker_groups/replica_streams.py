"""Calls of replicas: RegisterBroker, ChangeSyncStateSet and DescribeBrokerGroup."""

import asyncio
from collections.abc import Callable

from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import (
    BrokerGroup,
    DescribeBrokerGroupRequest,
    ReplicaReport,
    SyncStateSetRequest,
)
from popwheel_controller.broker_groups.broker_group import GroupState, unknown_group
from popwheel_controller.broker_groups.leadership_transfer import LeadershipTransfers
from popwheel_controller.broker_groups.overseer import Overseer
from popwheel_controller.broker_groups.replicas import Session, check_report
from popwheel_controller.cluster.admission import Admission
from popwheel_rpc.methods import CHANGE_SYNC_STATE_SET, DESCRIBE_BROKER_GROUP, REGISTER_BROKER
from popwheel_rpc.service import Call, Service, Stream, StreamClosedError

_ADVICE = (
    "nothing of it is served here. Start it with its own cluster's controllers (broker.controller), or give it "
    "an empty data folder if what it holds may go"
)


class ReplicaStreams:
    """Binds the calls of replicas to the overseer.

    Args:
        overseer: watches over the groups.
        transfers: replaces a master that is about to stop.
        admission: refuses brokers of another cluster.
        check_leads: raises StatusError while this controller does not lead.
        service: that gets the methods.
    """

    def __init__(
        self,
        overseer: Overseer,
        transfers: LeadershipTransfers,
        admission: Admission,
        check_leads: Callable[[], None],
        service: Service,
    ) -> None:
        self._overseer = overseer
        self._transfers = transfers
        self._admission = admission
        self._check_leads = check_leads
        service.stream(REGISTER_BROKER, self._register)
        service.unary(CHANGE_SYNC_STATE_SET, self._change_sync_state_set)
        service.unary(DESCRIBE_BROKER_GROUP, self._describe)

    async def _register(self, call: Call, stream: Stream[ReplicaReport, BrokerGroup]) -> None:
        """Register a replica for the life of the stream; send it the group's state, at once and after each change."""
        self._check_leads()
        report = await stream.receive()
        if report is None:
            raise StatusError(Code.BAD_REQUEST, "RegisterBroker begins with one ReplicaReport")
        self._check_leads()
        check_report(report)
        await self._admission.admit(report.cluster_id, f"replica {report.replica} of {report.group}", _ADVICE)
        self._check_leads()
        news = asyncio.Event()
        session = self._overseer.register(report, news.set)
        receiving = asyncio.create_task(self._receive(session, stream), name="replica-reports")
        receiving.add_done_callback(lambda _: news.set())
        sent = 0
        try:
            while session.refusal is None and not receiving.done():
                message = self._overseer.message_for(session)
                if message is not None and message.version > sent:
                    sent = message.version
                    await stream.send([message])
                else:
                    await news.wait()
                    news.clear()
            if session.refusal is not None:
                raise session.refusal
            await receiving
        except StreamClosedError:
            return
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            self._overseer.left(session)

    async def _receive(self, session: Session, stream: Stream[ReplicaReport, BrokerGroup]) -> None:
        """Process the reports of a registered replica until its stream ends."""
        while (report := await stream.receive()) is not None:
            if (report.group, report.replica) != session.key:
                names.broker_group(report.group)
                group, number = session.key
                raise StatusError(
                    Code.BAD_REQUEST,
                    f"this stream registers replica {number} of {group}; open another for replica {report.replica} "
                    f"of {report.group}",
                )
            self._overseer.reported(session, report)
            state = self._overseer.groups.states.get(report.group)
            if report.leaving and state is not None and state.master == report.replica:
                self._transfers.master_leaves(report.group)

    async def _change_sync_state_set(self, call: Call, request: SyncStateSetRequest) -> BrokerGroup:
        def decide(state: GroupState | None) -> GroupState:
            if state is None:
                raise StatusError(Code.PRECONDITION_FAILED, f"there is no broker group {request.group}")
            return state.with_sync_state_set(request.epoch, request.master, request.version, request.sync_state_set)

        names.broker_group(request.group)
        self._check_leads()
        return self._overseer.message_of(await self._overseer.change(request.group, decide))

    async def _describe(self, call: Call, request: DescribeBrokerGroupRequest) -> BrokerGroup:
        names.broker_group(request.group)
        self._check_leads()
        state = self._overseer.groups.states.get(request.group)
        if state is None:
            raise unknown_group(request.group)
        return self._overseer.describe(state)
