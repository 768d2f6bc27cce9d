"""Access checks of each message of a client's stream, in both directions."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from google.protobuf.message import Message

from popwheel_common.errors import StatusError
from popwheel_proxy.access.access import Access, Caller
from popwheel_proxy.protocol.turns import Turns, is_large
from popwheel_rpc.service import Stream, StreamClosedError

Incoming = TypeVar("Incoming", bound=Message)
Outgoing = TypeVar("Outgoing")


class GuardedStream(Generic[Incoming, Outgoing]):
    """`Stream` that checks the messages of another one.

    Incoming messages are checked before the handler sees them. Outgoing messages are dropped if the user was removed
    since, or may no longer do what it asked: a waiting poll releases the messages that it found, a Telemetry stream
    sends nothing.

    Args:
        stream: the client's.
        access: the rules.
        caller: its caller.
        turns: for the checks of large requests.
        lasting: whether the other side speaks of itself, as in Telemetry: for it the client is just gone.
    """

    def __init__(
        self,
        stream: Stream[Incoming, Outgoing],
        access: Access,
        caller: Caller,
        turns: Turns,
        *,
        lasting: bool = False,
    ) -> None:
        self._turns = turns
        self._stream = stream
        self._access = access
        self._caller = caller
        self._lasting = lasting

    async def receive(self) -> Incoming | None:
        """Return the next message; raises StatusError if the caller may not send it."""
        message = await self._stream.receive()
        if message is None:
            return None
        if is_large(message.ByteSize()):
            async with self._turns.one():
                self._access.check(self._caller, message)
        else:
            self._access.check(self._caller, message)
        return message

    async def send(self, messages: Sequence[Outgoing]) -> None:
        """Send messages that the client may still receive; else raise StatusError, or StreamClosedError if lasting."""
        try:
            self._access.check_again(self._caller)
        except StatusError as error:
            if not self._lasting:
                raise
            raise StreamClosedError(error.message) from error
        await self._stream.send(messages)
