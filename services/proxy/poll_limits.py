"""What polls and pulls may ask for: too much is cut to the limit and counted, what makes no sense is refused."""

from typing import Final

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.proxy.metrics import ProxyMetrics
from services.proxy.options import ProxyOptions

ANSWER_RESERVE_MS: Final = 300
"""A poll or pull is answered this long before the client's deadline."""

BLOCK_MESSAGES_MAX: Final = 256
"""Messages of one block. A broker's loop serves nobody else while it reads them, some 3 us each; it also stops at
`broker.pop.response_bytes_max`."""

_SHORTEST = "grpc_client_consumer_min_long_polling_timeout_ms"
_LONGEST = "grpc_client_consumer_max_long_polling_timeout_ms"


class PollLimits:
    """Number of messages, and time to wait for them.

    Args:
        options: the limits.
        metrics: what is counted.
    """

    def __init__(self, options: ProxyOptions, metrics: ProxyMetrics) -> None:
        self._batch_max = options.receive.batch_messages_max
        self._shortest_ms = options.grpc_client_consumer_min_long_polling_timeout_ms
        self._longest_ms = options.grpc_client_consumer_max_long_polling_timeout_ms
        self._metrics = metrics

    def batch(self, asked: int) -> int:
        """How many messages one answer holds at the most; one if the client does not say.

        Raises:
            StatusError: BAD_REQUEST, for a negative number.
        """
        count = _count(asked)
        if count > self._batch_max:
            self._metrics.limit_hit("receive.batch_messages_max")
            return self._batch_max
        return count

    def block(self, asked: int) -> int:
        """How many messages one block holds at the most. Raises as `batch` does."""
        return min(_count(asked), BLOCK_MESSAGES_MAX)

    def pull_wait_ms(self, asked_ms: int) -> int:
        """How long a pull may wait for a first message, in milliseconds.

        Raises:
            StatusError: ILLEGAL_POLLING_TIME, for a negative time.
        """
        if asked_ms < 0:
            raise StatusError(
                Code.ILLEGAL_POLLING_TIME,
                f"a polling time of {asked_ms} ms was asked for; it must be from 0 to {self._longest_ms} ms",
            )
        if asked_ms > self._longest_ms:
            self._metrics.limit_hit(_LONGEST)
            return self._longest_ms
        return asked_ms

    def poll_wait_ms(self, asked_ms: int) -> int:
        """How long a poll may wait for messages, in milliseconds: 0 if it asks for less than the shortest time.

        Raises:
            StatusError: ILLEGAL_POLLING_TIME, for a negative time.
        """
        wait_ms = self.pull_wait_ms(asked_ms)
        if 0 < wait_ms < self._shortest_ms:
            self._metrics.limit_hit(_SHORTEST)
            return 0
        return wait_ms


def _count(asked: int) -> int:
    if asked < 0:
        raise StatusError(Code.BAD_REQUEST, f"{asked} messages were asked for; ask for 1 or more")
    return asked or 1
