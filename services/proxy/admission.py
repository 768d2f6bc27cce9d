"""How many polls may run at one time: per client, per connection and in all."""

from collections import Counter

from services.common.errors import StatusError
from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.proxy.metrics import ProxyMetrics
from services.proxy.options import ReceiveOptions


class Admission:
    """Counts polls and the bytes of their answers that readers have not taken.

    Args:
        options: the limits.
        metrics: what is counted.
    """

    def __init__(self, options: ReceiveOptions, metrics: ProxyMetrics) -> None:
        self._options = options
        self._metrics = metrics
        self._by_client: Counter[str] = Counter()
        self._by_connection: Counter[str] = Counter()
        self.polls = 0
        self.unsent_bytes = 0

    def enter(self, client_id: str, connection: str) -> None:
        """A poll begins; `leave` must follow.

        Raises:
            StatusError: TOO_MANY_REQUESTS, if it is one too many.
        """
        options = self._options
        if self.polls >= options.polls_max:
            self._refuse("polls_max", "this proxy serves too many polls")
        if self._by_client[client_id] >= options.polls_per_client_max:
            self._refuse("polls_per_client_max", "this client has too many polls at one time")
        if self._by_connection[connection] >= options.polls_per_connection_max:
            self._refuse("polls_per_connection_max", "this connection has too many polls at one time")
        if self.unsent_bytes >= options.unsent_bytes_max:
            self._refuse("unsent_bytes_max", "too many messages wait for clients that read slowly")
        self.polls += 1
        self._by_client[client_id] += 1
        self._by_connection[connection] += 1

    def leave(self, client_id: str, connection: str) -> None:
        """A poll has ended."""
        self.polls -= 1
        for counter, key in ((self._by_client, client_id), (self._by_connection, connection)):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    def _refuse(self, limit: str, sentence: str) -> None:
        self._metrics.limit_hit(limit)
        raise StatusError(Code.TOO_MANY_REQUESTS, f"{sentence}; receive again later")
