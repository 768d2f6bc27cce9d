"""The end of a replica that the others do not notice: it goes when its group can do without it (pure).

A member of the sync-state set waits until every other replica that lives is one, too. While another one catches up, the
group would have no successor without this one, or fewer replicas than it had. So a roll, which goes on as soon as the
replica before is ready, takes the next one only when the set is whole again.
"""

from enum import Enum

from services.common.pb.popwheel.v1.controller_pb2 import BrokerGroup


class Step(Enum):
    """What a replica that is to end does next."""

    STAY = "stay"
    """Others catch up: it goes on as if it were not to end."""
    SAY = "say"
    """It tells the controller: a master's role is passed on, and nobody chooses a slave."""
    GO = "go"
    """It ends."""


def next_step(group: BrokerGroup, me: int) -> Step:
    """What is to be done next.

    Args:
        group: as the controller describes it; those count as alive that are not dead and have not said that they leave.
        me: number of the replica that is to end.
    """
    alive = {replica.number for replica in group.replicas if replica.alive}
    others = alive - {me}
    if me not in group.sync_state_set or not others:
        return Step.GO
    if not others <= set(group.sync_state_set):
        return Step.STAY
    return Step.SAY if group.master == me or me in alive else Step.GO
