"""Result of a pop between broker and proxy: plain objects, which become protobuf only on a socket."""

from dataclasses import dataclass, field

from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb


@dataclass(slots=True)
class PopAnswer:
    """Messages that were delivered, in columns of equal length.

    Args:
        messages: each a whole apache.rocketmq.v2.Message, ready for the client.
        handles: their receipt handles.
        waiting: how many are known to wait still for this group and topic (a scan that ended on its bound counts as
            one).
        is_unknown_client: of a lite pop: the broker does not know which lite topics the client reads.
    """

    messages: list[bytes] = field(default_factory=list)
    handles: list[str] = field(default_factory=list)
    waiting: int = 0
    is_unknown_client: bool = False


def encode_pop_answer(answer: PopAnswer) -> bytes:
    """Return a popwheel.v1.PopResponse."""
    return pb.PopResponse(
        messages=answer.messages,
        receipt_handles=answer.handles,
        waiting=answer.waiting,
        unknown_client=answer.is_unknown_client,
    ).SerializeToString()


def decode_pop_answer(data: bytes) -> PopAnswer:
    """Read a popwheel.v1.PopResponse; raises `google.protobuf.message.DecodeError`."""
    response = pb.PopResponse.FromString(data)
    return PopAnswer(response.messages[:], response.receipt_handles[:], response.waiting, response.unknown_client)
