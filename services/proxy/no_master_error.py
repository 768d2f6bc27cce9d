"""The refusal of a call whose broker group has no master, so that nobody was asked."""

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code


class NoMasterError(StatusError):
    """HA_NOT_AVAILABLE, said by this process: there is no way to a broker group, so nothing was asked of it.

    Args:
        name: the group's name, which may be one that a client made up.
        known: whether there is such a group.
    """

    def __init__(self, name: str, *, known: bool) -> None:
        shown = repr(name if len(name) <= 64 else name[:61] + "...")
        why = "has no master" if known else "is not there"
        super().__init__(Code.HA_NOT_AVAILABLE, f"the broker {shown} {why} now; try again")
