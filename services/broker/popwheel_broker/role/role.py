"""Role of a replica in its group, and its identity."""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from popwheel_broker.role.follower import Follower
from popwheel_broker.role.leader import Leader
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerGroup
from popwheel_common.transitions import Row, Transitions


class RoleState(Enum):
    """State of a replica in its group."""

    WAITS = auto()
    """It has no role: the master is unknown, there is none, or it is between two roles."""
    FOLLOWS = auto()
    """It is a slave."""
    BEGINS = auto()
    """It is about to lead: its log is finished for the epoch, and calls are parked."""
    LEADS = auto()
    """It is the master, and serves."""


TRANSITIONS: Final = Transitions(
    "role",
    Row((RoleState.WAITS,), ("follow",), RoleState.FOLLOWS, "another replica leads"),
    Row(
        (RoleState.FOLLOWS,),
        ("follow_no_more",),
        RoleState.WAITS,
        "another master leads, nobody does, or it is to lead",
    ),
    Row((RoleState.WAITS,), ("begin_to_lead",), RoleState.BEGINS, "it leads an epoch that it does not lead yet"),
    Row((RoleState.BEGINS,), ("lead",), RoleState.LEADS, "it serves"),
    Row((RoleState.BEGINS,), ("lead_no_more",), RoleState.WAITS, "it could not begin, which is tried again"),
    Row(
        (RoleState.LEADS,), ("lead_no_more",), RoleState.WAITS, "another leads, nobody does, or it leads a newer epoch"
    ),
)


@dataclass(slots=True, eq=False)
class Role:
    """Role of the replica, changed by the `RoleMachine` only.

    Attributes:
        identity: of its data folder; empty until it has recovered.
        group: the state of the group, as last received.
        state: state of the role.
        leader: the term of this replica, if it leads or is about to.
        follower: the term of its master, if it follows one.
        trouble: why the last try to take a role failed, as with a full disk; it tries again every second.
    """

    identity: bytes = b""
    group: BrokerGroup = field(default_factory=BrokerGroup)
    state: RoleState = RoleState.WAITS
    leader: Leader | None = None
    follower: Follower | None = None
    trouble: str | None = None

    @property
    def members(self) -> frozenset[int]:
        """Numbers of the known replicas of the group."""
        return frozenset(replica.number for replica in self.group.replicas)

    def follow(self, follower: Follower) -> None:
        """Record that a master is followed from now on."""
        self._step("follow", RoleState.FOLLOWS, follower=follower)

    def follow_no_more(self) -> None:
        """Record that it has stopped to follow."""
        self._step("follow_no_more", RoleState.WAITS)

    def begin_to_lead(self, leader: Leader) -> None:
        """Record that a term of this replica is about to begin."""
        self._step("begin_to_lead", RoleState.BEGINS, leader=leader)

    def lead(self) -> None:
        """Record that the term has begun."""
        self._step("lead", RoleState.LEADS, leader=self.leader)

    def lead_no_more(self) -> None:
        """Record that the term has ended, or could not begin."""
        self._step("lead_no_more", RoleState.WAITS)

    def validate(self) -> None:
        """Check the invariant after each step (S5): no replica leads and follows at once."""
        assert (self.leader is not None) == (self.state in (RoleState.BEGINS, RoleState.LEADS)), "it leads or not"
        assert (self.follower is not None) == (self.state is RoleState.FOLLOWS), "it follows or not"

    def _step(
        self, event: str, state: RoleState, *, leader: Leader | None = None, follower: Follower | None = None
    ) -> None:
        self.state = TRANSITIONS.step(self.state, event, state)
        self.leader, self.follower = leader, follower
        self.validate()
