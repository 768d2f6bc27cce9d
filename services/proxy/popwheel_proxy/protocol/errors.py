"""Refusals of this proxy that its code distinguishes by their class."""

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code


class LimitError(StatusError):
    """A `StatusError` that `popwheel_proxy_limit_hits_total` counts where it becomes an answer.

    Args:
        code: what is wrong.
        message: one sentence for a person.
        limit: the limit's option without `proxy.`, such as `message.body_bytes_max`, or a name of its own for one that
            is no option.
    """

    def __init__(self, code: Code.ValueType, message: str, limit: str) -> None:
        super().__init__(code, message)
        self.limit = limit


class NoMasterError(StatusError):
    """HA_NOT_AVAILABLE of this process: a broker group has no master, so no call was made.

    Args:
        name: the group's name, which may be one that a client made up.
        known: whether there is such a group.
    """

    def __init__(self, name: str, *, known: bool) -> None:
        shown = repr(name if len(name) <= 64 else name[:61] + "...")
        why = "has no master" if known else "is not there"
        super().__init__(Code.HA_NOT_AVAILABLE, f"the broker {shown} {why} now; try again")
