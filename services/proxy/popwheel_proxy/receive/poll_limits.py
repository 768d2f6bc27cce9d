"""Limits of polls and pulls, and of their number: per client, per connection, and in all, shared between groups.

A value beyond a limit is cut and counted; an invalid value, or a poll too many, is refused.
"""

from typing import Final

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.shares import Shares
from popwheel_proxy.options import ProxyOptions, ReceiveOptions
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.metrics import ProxyMetrics

ANSWER_RESERVE_MS: Final = 300
"""A poll or pull is answered this long before the client's deadline."""

BLOCK_MESSAGES_MAX: Final = 1024
"""Messages of one block. A broker's loop serves no other call while it reads them, less than 1 us each.

It also stops at `broker.pop.response_bytes_max`.
"""

_SHORTEST = "grpc_client_consumer_min_long_polling_timeout_ms"
_LONGEST = "grpc_client_consumer_max_long_polling_timeout_ms"


class PollLimits:
    """Limits of the messages of a poll, and of its wait.

    Args:
        options: the limits.
        metrics: what is counted.

    Attributes:
        admission: limits of running polls; a pull counts as a poll.
    """

    def __init__(self, options: ProxyOptions, metrics: ProxyMetrics) -> None:
        self._batch_max = options.receive.batch_messages_max
        self._shortest_ms = options.grpc_client_consumer_min_long_polling_timeout_ms
        self._longest_ms = options.grpc_client_consumer_max_long_polling_timeout_ms
        self._metrics = metrics
        self.admission = Admission(options.receive)

    def batch(self, asked: int) -> int:
        """Return the largest number of messages of one answer; one if the client does not say.

        Raises:
            StatusError: BAD_REQUEST, for a negative number.
        """
        count = _count(asked)
        if count > self._batch_max:
            self._metrics.limit_hit("receive.batch_messages_max")
            return self._batch_max
        return count

    def block(self, asked: int) -> int:
        """Return the largest number of messages of one block. Raises as `batch` does."""
        return min(_count(asked), BLOCK_MESSAGES_MAX)

    def pull_wait_ms(self, asked_ms: int) -> int:
        """Return how long a pull may wait for a first message, in milliseconds.

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
        """Return how long a poll may wait for messages, in milliseconds: 0 if it asks for less than the shortest time.

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


class Admission:
    """Counts running polls, and the bytes of their unread answers.

    Args:
        options: the limits.
    """

    def __init__(self, options: ReceiveOptions) -> None:
        self._options = options
        self._by_client = Shares()
        self._by_connection = Shares()
        self._by_group = Shares()
        self.unsent = Shares()
        """Bytes of each client."""

    @property
    def polls(self) -> int:
        """Number of running polls."""
        return self._by_group.total

    def enter(self, client_id: str, connection: str, group: str) -> None:
        """Admit a poll; `leave` must follow.

        Raises:
            LimitError: TOO_MANY_REQUESTS, if there are too many.
        """
        options = self._options
        if not self._by_group.room(group, options.polls_max):
            raise _refusal("polls_max", f"this proxy serves {self.polls} polls, and has no room for more of this group")
        if self._by_client.share(client_id) >= options.polls_per_client_max:
            raise _refusal("polls_per_client_max", "this client has too many polls at one time")
        if self._by_connection.share(connection) >= options.polls_per_connection_max:
            raise _refusal("polls_per_connection_max", "this connection has too many polls at one time")
        if not self.unsent.room(client_id, options.unsent_bytes_max):
            raise _refusal("unsent_bytes_max", "too many messages wait for clients that read slowly, as this one")
        self._by_group.take(group)
        self._by_client.take(client_id)
        self._by_connection.take(connection)

    def leave(self, client_id: str, connection: str, group: str) -> None:
        """Remove a poll that has ended."""
        self._by_group.give(group)
        self._by_client.give(client_id)
        self._by_connection.give(connection)


def _refusal(limit: str, sentence: str) -> LimitError:
    return LimitError(Code.TOO_MANY_REQUESTS, f"{sentence}; receive again later", f"receive.{limit}")
