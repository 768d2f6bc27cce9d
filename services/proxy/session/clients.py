"""Which clients there are, and when each was last heard of; a connection says nothing, the client id is all."""

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.proxy.errors import LimitError


class Clients:
    """Client ids and the time of their last sign of life. Told the time; does no I/O.

    Args:
        clients_max: how many are kept.
        expiry_s: one that has not been heard of for this long is gone.
    """

    def __init__(self, clients_max: int, expiry_s: float) -> None:
        self._clients_max = clients_max
        self._expiry_s = expiry_s
        self._seen: dict[str, float] = {}  # the one seen longest ago first
        self._lite: dict[str, bool] = {}
        self._lite_count = 0

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, client_id: str, now: float) -> None:
        """A client has beaten, sent its settings or asked for messages.

        Raises:
            LimitError: TOO_MANY_REQUESTS, if it is new and there are too many.
        """
        if self._seen.pop(client_id, None) is None and len(self._seen) >= self._clients_max:
            raise LimitError(
                Code.TOO_MANY_REQUESTS, "this proxy has too many clients; try again later", "client.sessions_max"
            )
        self._seen[client_id] = now

    def is_alive(self, client_id: str, now: float) -> bool:
        """Whether a client was heard of not too long ago."""
        last = self._seen.get(client_id)
        return last is not None and now - last < self._expiry_s

    def is_of(self, client_id: str, *, lite: bool) -> None:
        """A client has said what it is: a consumer of lite topics or not. One that was never seen is passed over."""
        if client_id in self._seen:
            self._lite_count += lite - self._lite.get(client_id, False)
            self._lite[client_id] = lite

    @property
    def any_lite(self) -> bool:
        """Whether any client is a consumer of lite topics."""
        return self._lite_count > 0

    def reads_lite(self, client_id: str) -> bool | None:
        """Whether a client is a consumer of lite topics; None if it has not said so."""
        return self._lite.get(client_id)

    def gone(self, client_id: str) -> None:
        """A client has said that it stops."""
        self._seen.pop(client_id, None)
        self._lite_count -= self._lite.pop(client_id, False)

    def expire(self, now: float) -> None:
        """Forget clients that were not heard of for too long."""
        while self._seen:
            client_id, last = next(iter(self._seen.items()))
            if now - last < self._expiry_s:
                return
            self.gone(client_id)
