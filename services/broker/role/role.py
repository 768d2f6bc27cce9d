"""Who a replica is, and what it is in its group at the moment."""

from dataclasses import dataclass, field

from services.broker.role.follower import Follower
from services.broker.role.leader import Leader
from services.common.pb.popwheel.v1.controller_pb2 import BrokerGroup


@dataclass(slots=True, eq=False)
class Role:
    """Changed by the `RoleMachine` only; whoever answers for the replica reads it.

    Attributes:
        identity: of its data folder; empty until it has recovered.
        group: the state of the group that was heard last.
        leader: the mastership, if this replica leads.
        follower: what keeps up with the master, if this replica follows one.
        trouble: why it could not take its role when it last tried, as with a full disk; it tries again every second.
    """

    identity: bytes = b""
    group: BrokerGroup = field(default_factory=BrokerGroup)
    leader: Leader | None = None
    follower: Follower | None = None
    trouble: str | None = None

    @property
    def members(self) -> frozenset[int]:
        """Numbers of the group's replicas, as far as it was heard of them."""
        return frozenset(replica.number for replica in self.group.replicas)

    def validate(self) -> None:
        """What must hold (S5): nobody leads and follows at once."""
        assert self.leader is None or self.follower is None, "this replica leads and follows"
