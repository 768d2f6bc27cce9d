"""How many polls may run at one time: per client, per connection and in all, which groups share."""

from collections import Counter

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.common.shares import Shares
from services.proxy.limit_error import LimitError
from services.proxy.options import ReceiveOptions


class Admission:
    """Counts polls and the bytes of their answers that readers have not taken.

    Args:
        options: the limits.
    """

    def __init__(self, options: ReceiveOptions) -> None:
        self._options = options
        self._by_client: Counter[str] = Counter()
        self._by_connection: Counter[str] = Counter()
        self._by_group = Shares()
        self.unsent = Shares()
        """Bytes of each client."""

    @property
    def polls(self) -> int:
        """How many run."""
        return self._by_group.total

    def enter(self, client_id: str, connection: str, group: str) -> None:
        """A poll begins; `leave` must follow.

        Raises:
            LimitError: TOO_MANY_REQUESTS, if it is one too many.
        """
        options = self._options
        if not self._by_group.room(group, options.polls_max):
            raise _refusal("polls_max", f"this proxy serves {self.polls} polls, and has no room for more of this group")
        if self._by_client[client_id] >= options.polls_per_client_max:
            raise _refusal("polls_per_client_max", "this client has too many polls at one time")
        if self._by_connection[connection] >= options.polls_per_connection_max:
            raise _refusal("polls_per_connection_max", "this connection has too many polls at one time")
        if not self.unsent.room(client_id, options.unsent_bytes_max):
            raise _refusal("unsent_bytes_max", "too many messages wait for clients that read slowly, as this one")
        self._by_group.take(group)
        self._by_client[client_id] += 1
        self._by_connection[connection] += 1

    def leave(self, client_id: str, connection: str, group: str) -> None:
        """A poll has ended."""
        self._by_group.give(group)
        for counter, key in ((self._by_client, client_id), (self._by_connection, connection)):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]


def _refusal(limit: str, sentence: str) -> LimitError:
    return LimitError(Code.TOO_MANY_REQUESTS, f"{sentence}; receive again later", f"receive.{limit}")
