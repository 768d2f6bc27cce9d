"""The refusal of a request that goes past a limit, which is counted under the limit's name."""

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code


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
