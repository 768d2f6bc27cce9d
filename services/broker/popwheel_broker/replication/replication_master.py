"""The master's part of replication: its slaves' streams, and what it asks of the controller because of them."""

import asyncio
from collections.abc import Callable

import structlog

from popwheel_broker.replication.log_sender import LogSender, Master
from popwheel_broker.replication.sync_state_set import SetChange
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import LogChunk, ReplicateProgress
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, ReplicaLag, SyncStateSetRequest
from popwheel_common.supervision import supervised
from popwheel_rpc.methods import CHANGE_SYNC_STATE_SET
from popwheel_rpc.service import Call, Channel, Stream, StreamClosedError
from popwheel_rpc.status import RpcError

_log = structlog.get_logger()

_TICK_S = 0.1
_ASK_TIMEOUT_S = 3.0


class ReplicationMaster:
    """Serves the slaves in one term, and keeps the sync-state set.

    Args:
        master: the leading replica; appends and syncs are reported to its sync-state set.
        controller: channel to the controller.
        on_follower: called before a slave's progress counts for the first time.
        on_group: called with the group's state after each change that it asked for; the set has it already.
        on_failure: called with an unexpected error.
    """

    def __init__(
        self,
        master: Master,
        controller: Channel,
        on_follower: Callable[[], None],
        on_group: Callable[[BrokerGroup], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._master = master
        self._group = master.group
        self._me = master.me
        self._epoch = master.epoch
        self._log = master.log
        self.members = master.members
        self._constants = master.constants
        self._clock = master.clock
        self.statistics = master.statistics
        self._controller = controller
        self._on_follower = on_follower
        self._on_group = on_group
        self._on_failure = on_failure
        self._identities: dict[int, bytes] = {}
        """Identities of the volumes that the controller has recorded, by the same version of the group as the set."""
        self._senders: dict[int, LogSender] = {}
        self._sent_before: dict[int, int] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._ended = False

    def start(self) -> None:
        """Begin to look after members; slaves may come before that, too."""
        if self.members.members != {self._me}:
            self._tick_from_now_on()

    async def stop(self) -> None:
        """End all streams: this replica leads no more, or stops."""
        self._ended = True
        for sender in list(self._senders.values()):
            sender.end(self._leads_no_more())
        if self._sending is not None:
            self._sending.cancel()
        tasks = [task for task in (self._ticking, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def appended(self) -> None:
        """Send what the log has grown by; to be called at once after each append."""
        for sender in self._senders.values():
            sender.appended()

    def decided(self, group: BrokerGroup) -> None:
        """Apply the group's state, unless it is older than the known one."""
        if group.version < self.members.version:
            return
        self._identities = {each.number: each.identity for each in group.replicas}
        self.members.decided(group.version, group.sync_state_set, self._clock.steady_ms())
        for sender in list(self._senders.values()):
            if self._is_stranger(sender.replica, sender.identity):
                del self._senders[sender.replica]
                self._parted(sender)
                sender.end(self._stranger(sender.replica))

    def lags(self) -> list[ReplicaLag]:
        """Return the lag of each slave, for the report to the controller."""
        return [
            ReplicaLag(
                replica=each.replica,
                end_position=each.end_position,
                synced_position=each.synced_position,
                behind_bytes=each.behind_bytes,
                behind_ms=each.behind_ms,
            )
            for each in self.members.lags(self._clock.steady_ms())
        ]

    @property
    def followers(self) -> int:
        """Number of slaves that follow."""
        return len(self._senders)

    @property
    def under_way_bytes(self) -> int:
        """Bytes under way to the slave to which most are."""
        return max((each.under_way_bytes for each in self._senders.values()), default=0)

    # The handler of Replicate

    async def replicate(self, call: Call, stream: Stream[ReplicateProgress, LogChunk]) -> None:
        """Serve one slave's stream to its end.

        Raises:
            StatusError: it is not to follow this master, or not any more.
        """
        first = await stream.receive()
        if first is None:
            return
        self._check(first)
        replica = first.replica
        earlier = self._senders.pop(replica, None)
        if earlier is not None:
            # Its end has not been noticed yet.
            self._parted(earlier)
            earlier.end(StatusError(Code.HA_NOT_AVAILABLE, f"replica {replica} has opened another stream"))
        sender = LogSender(
            master=self._master,
            first=first,
            stream=stream,
            sent_before=self._sent_before.get(replica, 0),
            on_member=self._ask_if_due,
            on_sent=self._send_later,
        )
        self._on_follower()
        self._senders[replica] = sender
        self._tick_from_now_on()
        plan = sender.plan
        _log.info(
            "a replica follows",
            replica=replica,
            peer=call.peer,
            its_end=first.end_position,
            goes_on_at=plan.position,
            anew=plan.anew,
            end=self._log.end_position,
        )
        why = "it ended the stream"
        try:
            await sender.run()
        except (StatusError, RpcError, StreamClosedError) as error:
            why = str(error) or "the stream was closed"
            raise
        finally:
            self._sent_before[replica] = max(self._sent_before.get(replica, 0), sender.sent_position)
            if self._senders.get(replica) is sender:
                del self._senders[replica]
                self._parted(sender)
                if not self._ended:
                    self.statistics.streams_broken += 1
                    _log.warning("a replica follows no more", replica=replica, why=why)

    def _check(self, first: ReplicateProgress) -> None:
        if self._ended:
            raise self._leads_no_more()
        names.broker_group(first.group)
        if first.group != self._group or first.replica == self._me:
            raise StatusError(
                Code.BAD_REQUEST,
                f"replica {first.replica} of {first.group} can't follow replica {self._me} of {self._group}; "
                "check broker.name and broker.replica of both",
            )
        if first.epoch != self._epoch:
            raise StatusError(
                Code.PRECONDITION_FAILED,
                f"replica {first.replica} follows epoch {first.epoch} of {self._group}, this master leads "
                f"epoch {self._epoch}",
            )
        if self._is_stranger(first.replica, first.identity):
            raise self._stranger(first.replica)
        if len(self._senders) >= self._constants.followers_max and first.replica not in self._senders:
            self.statistics.refused_followers += 1
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"{len(self._senders)} replicas follow this master, as many as one can have",
            )

    def _is_stranger(self, replica: int, identity: bytes) -> bool:
        """Return whether this is another volume than the one that may become master by that number.

        Its log must not count for it.
        """
        recorded = self._identities.get(replica, b"")
        return bool(recorded and identity) and recorded != identity

    def _stranger(self, replica: int) -> StatusError:
        return StatusError(
            Code.PRECONDITION_FAILED,
            f"the volume of this replica {replica} of {self._group} is not the one that the controller has recorded; "
            "if two processes have this number, end one of them",
        )

    def _parted(self, sender: LogSender) -> None:
        if sender.connected:
            sender.connected = False
            self.members.disconnected(sender.replica, self._clock.steady_ms())

    def _leads_no_more(self) -> StatusError:
        return StatusError(
            Code.HA_NOT_AVAILABLE, f"replica {self._me} of {self._group} does not lead epoch {self._epoch} any more"
        )

    # What time brings about

    def _tick_from_now_on(self) -> None:
        if self._ticking is None and not self._ended:
            self._ticking = supervised(self._tick_often(), "replication-master", self._on_failure)

    async def _tick_often(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now_ms = self._clock.steady_ms()
            for sender in list(self._senders.values()):
                sender.tick(now_ms)
            self._ask_if_due()

    def _send_later(self) -> None:
        if self._sending is None and not self._ended:
            loop = asyncio.get_running_loop()
            self._sending = loop.call_later(self._constants.watermark_ms / 1000, self._send_watermarks)

    def _send_watermarks(self) -> None:
        self._sending = None
        for sender in self._senders.values():
            sender.send_watermark()
        if self._senders and self.members.fully_synced_position < self._log.end_position:
            self._send_later()

    # Asking the controller

    def _ask_if_due(self) -> None:
        if self._asking is not None or self._ended:
            return
        change = self.members.due(self._clock.steady_ms())
        if change is not None:
            self._asking = supervised(self._ask(change), "change-sync-state-set", self._on_failure)
            self._asking.add_done_callback(self._asked)

    def _asked(self, _task: asyncio.Task[None]) -> None:
        self._asking = None

    async def _ask(self, change: SetChange) -> None:
        members = self.members
        before, wanted = sorted(members.members), sorted(change.members)
        try:
            answer = await self._controller.call(
                CHANGE_SYNC_STATE_SET,
                SyncStateSetRequest(
                    group=self._group,
                    epoch=self._epoch,
                    master=self._me,
                    version=change.version,
                    sync_state_set=wanted,
                ),
                timeout_s=_ASK_TIMEOUT_S,
            )
        except (StatusError, RpcError) as error:
            members.failed(change, error, self._clock.steady_ms())
            # The group changed meanwhile: the request is repeated for its present state.
            has_changed = isinstance(error, StatusError) and error.code == Code.PRECONDITION_FAILED
            (_log.info if has_changed else _log.warning)(
                "the sync-state set was not changed", group=self._group, is_=before, wanted=wanted, why=str(error)
            )
            return
        self.decided(answer)
        self.statistics.set_changes += 1
        after = sorted(answer.sync_state_set)
        log = _log.info if set(before) <= set(after) else _log.warning
        log("sync-state set changed", group=self._group, before=before, after=after)
        self._on_group(answer)
