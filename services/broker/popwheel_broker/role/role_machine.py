"""Machine of a replica's roles: it receives the group's state, and leads or follows.

`role.py` has the table of its states. A role ends before the next one begins, so each change of roles passes WAITS. A
master that receives a state of the epoch that it leads already keeps its role, and applies what has changed.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import structlog

from popwheel_broker.calls.context import BrokerContext
from popwheel_broker.calls.router import Router
from popwheel_broker.replication.peers import Peers
from popwheel_broker.role.follower import Follower
from popwheel_broker.role.leader import Leader
from popwheel_broker.role.replica_server import ReplicaServer
from popwheel_broker.role.role import Role, RoleState
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup, Replica
from popwheel_common.supervision import supervised

_log = structlog.get_logger()

_TRY_AGAIN_S = 1.0


class RoleMachine:
    """Takes the roles of the group's state, one after the other.

    Args:
        context: of the replica.
        role: the replica's role; changed here.
        peers: the other replicas.
        router: serves, parks or refuses calls by the role.
        replica_server: ends a transfer of the role with the term.
        on_role: called when a report to the controller is due.
    """

    def __init__(
        self,
        context: BrokerContext,
        role: Role,
        peers: Peers,
        router: Router,
        replica_server: ReplicaServer,
        on_role: Callable[[], None],
    ) -> None:
        self._context = context
        self._role = role
        self._options = context.options
        self._files = context.files
        self._peers = peers
        self._router = router
        self._replica_server = replica_server
        self._on_role = on_role
        self._stored_numbers: frozenset[int] = frozenset()
        """Numbers of the replicas in the superblock, which the next start knows."""
        self._has_group = False
        self._group_changed = asyncio.Event()
        self._leads = asyncio.Event()
        self._leads_no_more = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._redelivered_before = 0

    @property
    def redelivered(self) -> int:
        """Redelivered messages, in all terms of this process."""
        leader = self._role.leader
        return self._redelivered_before + (0 if leader is None else leader.reviver.redelivered)

    def load(self) -> bool:
        """Restore the group's state of an earlier process; return whether this replica is the only one."""
        self._role.group = BrokerGroup.FromString(self._files.superblock.contents.group)
        self._peers.know(self._role.group)
        # Not by the sync-state set: it may have grown by this replica's request, and the answer was lost.
        # Without a state there may be others.
        self._stored_numbers = self._role.members
        return self._stored_numbers == {self._options.replica}

    def start(self) -> None:
        """Start to take roles."""
        self._task = supervised(self._take_roles(), "broker-roles", self._context.on_failure)

    # Events

    def group_changed(self, group: BrokerGroup) -> None:
        """Accept the group's state from a controller, unless it is older than the known one."""
        known = self._role.group
        group.cluster_id = group.cluster_id or known.cluster_id  # a data folder belongs to its cluster for good
        if group.version < known.version or (group.version == known.version and self._has_group):
            return
        self._role.group = group
        self._peers.group_changed(group)
        self._has_group = True
        self._group_changed.set()

    async def until_leads(self) -> None:
        """Return when this replica leads."""
        await self._leads.wait()

    async def until_leads_no_more(self) -> None:
        """Return when the present term has ended."""
        await self._leads_no_more.wait()

    # Roles

    async def _take_roles(self) -> None:
        role, files = self._role, self._files
        mended: set[int] = set()
        while True:
            await self._group_changed.wait()
            self._group_changed.clear()
            if self._context.has_failed():
                return
            try:
                await self._take_role(role.group)
                role.trouble = None
            except CorruptDataError as error:
                damaged = files.log.damaged - mended
                mended |= damaged
                files.log.damaged.clear()
                if not [position for position in sorted(damaged) if await self._context.repair(position)]:
                    self._context.on_failure(error)
                    return
                self._group_changed.set()
            except (OSError, StatusError) as error:
                _log.error("the role could not be taken, trying again", name=self._options.name, error=str(error))
                if role.state is RoleState.WAITS:
                    role.trouble = str(error)
                    self._router.refuse(f"cannot take its role at this moment: {error}")
                await asyncio.sleep(_TRY_AGAIN_S)
                self._group_changed.set()

    async def _take_role(self, group: BrokerGroup) -> None:
        await self._peers.forget_absent()
        role = self._role
        leader = role.leader
        if group.master == self._options.replica and group.epoch > 0:
            if leader is not None and leader.epoch == group.epoch:
                try:  # first: the next start must know a replica that may join the set
                    await self._store_group(group)
                finally:
                    leader.decided(group)  # a master with a full disk continues, and tries to record it again
            else:
                await self._store_group(group)
                await self._lead(group)
            return
        if leader is not None:
            await self._lead_no_more(leader)  # first: callers need not wait for the device
        if not self._files.is_followers:  # also if this replica was about to lead, or an earlier try failed
            await self._files.unfinish()
            _log.info("the broker leads no more", name=self._options.name, replica=self._options.replica)
        master = next((each for each in group.replicas if each.number == group.master), None)
        if role.follower is not None and (master is None or not role.follower.is_of(group.epoch, master.address)):
            await role.follower.stop()
            role.follow_no_more()
        if master is None:
            self._router.refuse("has no master at this moment, one is being chosen")
        else:
            self._router.refuse(f"is led by another replica, at {master.address}")
            if role.follower is None:
                self._follow(group, master)
        await self._store_group(group)

    async def _lead(self, group: BrokerGroup) -> None:
        role, files, clock = self._role, self._files, self._context.clock
        began_s = clock.monotonic()
        self._router.expect()
        if role.follower is not None:
            await role.follower.stop()
            role.follow_no_more()
        if role.leader is not None:
            await self._depose(role.leader)
        await files.finish(group.epoch)
        await files.clear_suspect()  # the election waited for the others: this log is the one that counts now
        leader = Leader(group, self._context, self.group_changed)
        role.begin_to_lead(leader)
        try:
            await leader.start()
        except BaseException:
            role.lead_no_more()
            await leader.abandon()
            raise
        role.lead()
        self._router.open(leader.server.service, leader.replication.replicate)
        self._leads_no_more.clear()
        self._leads.set()
        self._on_role()
        _log.info(
            "the broker leads",
            name=self._options.name,
            replica=self._options.replica,
            epoch=group.epoch,
            position=files.end_position,
            seconds=round(clock.monotonic() - began_s, 3),
        )

    async def _lead_no_more(self, leader: Leader) -> None:
        self._leads.clear()
        self._router.refuse("is led by another replica now")
        await self._depose(leader)
        self._leads_no_more.set()

    async def _depose(self, leader: Leader) -> None:
        self._replica_server.stop_waiting()
        await leader.depose()
        self._redelivered_before += leader.reviver.redelivered
        self._role.lead_no_more()

    def _follow(self, group: BrokerGroup, master: Replica) -> None:
        to_replica = self._context.channels.to_replica
        if to_replica is None:
            _log.error("there is no channel to other replicas of this broker", name=self._options.name)
            return
        open_channel = partial(to_replica, master.address)
        follower = Follower(self._context, self._role.identity, group.epoch, master.address, open_channel)
        self._role.follow(follower)
        follower.start()
        _log.info(
            "the broker follows",
            name=self._options.name,
            replica=self._options.replica,
            epoch=group.epoch,
            master=master.address,
        )

    async def _store_group(self, group: BrokerGroup) -> None:
        """Record the group's state; it is reported to a controller that has lost its state.

        Raises:
            OSError: it failed, and the next start would not know one of the replicas: it might take itself for the only
                one.
        """
        numbers = frozenset(replica.number for replica in group.replicas)
        try:
            await self._files.superblock.change(group=group.SerializeToString())
        except OSError as error:
            if not numbers <= self._stored_numbers:
                raise
            _log.error("the state of the broker's group could not be recorded", error=str(error))
        else:
            self._stored_numbers = numbers

    async def stop(self) -> None:
        """Stop with the process: save, unless the broker has failed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._replica_server.stop_waiting()
        role, has_failed = self._role, self._context.has_failed
        if role.follower is not None:
            await role.follower.stop()
            if not has_failed():
                with suppress(OSError):
                    await role.follower.save()
        if role.leader is not None:
            if has_failed():
                await role.leader.abandon()
            else:
                await role.leader.stop()
