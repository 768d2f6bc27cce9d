"""The answer to a SendMessage, encoded by hand: to add its entries one by one takes three times as long."""

from collections.abc import Sequence
from typing import Final

from popwheel_common.contract.put import PutKind
from popwheel_common.contract.wire_format import LENGTH_DELIMITED, VARINT, field, varint
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Status
from popwheel_proxy.protocol.payload import ClientMessage
from popwheel_proxy.protocol.statuses import OK, status

_STATUS: Final = 1
_ENTRY_TAG: Final = bytes((2 << 3 | LENGTH_DELIMITED,))
_MESSAGE_ID_TAG: Final = bytes((2 << 3 | LENGTH_DELIMITED,))
_OFFSET_TAG: Final = bytes((4 << 3 | VARINT,))
_REFERENCES: Final = {PutKind.AT_TIME: 5, PutKind.HALF: 3}
"""Numbers of the fields `recall_handle` and `transaction_id`."""
_OK_FIELD: Final = field(_STATUS, OK.SerializeToString())
_MIXED: Final = Status(
    code=Code.MULTIPLE_RESULTS, message="some messages were stored and some were not; see the entries"
)


class SendAnswer:
    """An encoded SendMessageResponse.

    Args:
        status: the one on top.
        encoded: all of it.
    """

    __slots__ = ("encoded", "status")

    def __init__(self, status: Status, encoded: bytes) -> None:
        self.status = status
        self.encoded = encoded


def send_answer(messages: Sequence[ClientMessage], stored: Sequence[int | str | StatusError]) -> SendAnswer:
    """Return the answer with an entry per message; the status on top is theirs if they all have the same.

    Args:
        messages: the messages, at least one.
        stored: for each its queue offset, its reference (`PutResult`), or why it was not stored.
    """
    assert len(messages) == len(stored), "not every message has its result"
    parts: list[bytes] = [_OK_FIELD]
    refused: dict[int, Status] = {}
    some_stored = False
    for index, message in enumerate(messages):
        result = stored[index]
        message_id = message.message_id.encode()
        named: bytes = _MESSAGE_ID_TAG + varint(len(message_id)) + message_id
        if isinstance(result, int):
            some_stored = True
            entry: bytes = _OK_FIELD + named + _OFFSET_TAG + varint(result)
        elif isinstance(result, str):
            some_stored = True
            entry = _OK_FIELD + named + field(_REFERENCES[message.kind], result.encode())
        else:
            shown = status(result.code, result.message)
            refused.setdefault(int(result.code), shown)
            entry = field(_STATUS, shown.SerializeToString()) + named
        parts.append(_ENTRY_TAG + varint(len(entry)) + entry)
    on_top = OK
    if refused:
        on_top = _MIXED if len(refused) + some_stored > 1 else next(iter(refused.values()))
        parts[0] = field(_STATUS, on_top.SerializeToString())
    return SendAnswer(on_top, b"".join(parts))


def refused_send(why: Status) -> SendAnswer:
    """Return the answer to a request of which nothing was stored."""
    return SendAnswer(why, field(_STATUS, why.SerializeToString()))
