"""Statuses as clients understand them: every answer carries one, and old clients know fewer codes than new ones."""

from collections.abc import Mapping

from google.protobuf.message import Message

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Status
from popwheel_rpc.status import GrpcStatus, NotProcessedError, RpcError

OK = Status(code=Code.OK, message="OK")
_OK_CODE = int(Code.OK)

_FIRST_COMPLETE_VERSION = (5, 0, 3)
_LATER_CODES: dict[int, Code.ValueType] = {
    Code.ILLEGAL_POLLING_TIME: Code.BAD_REQUEST,
    Code.ILLEGAL_OFFSET: Code.BAD_REQUEST,
    Code.ILLEGAL_LITE_TOPIC: Code.BAD_REQUEST,
    Code.INVALID_CLIENT_PROPERTIES: Code.BAD_REQUEST,
    Code.OFFSET_NOT_FOUND: Code.NOT_FOUND,
    Code.MESSAGE_BODY_EMPTY: Code.BAD_REQUEST,
    Code.LITE_TOPIC_QUOTA_EXCEEDED: Code.TOO_MANY_REQUESTS,
    Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.TOO_MANY_REQUESTS,
}
"""Codes that the first protocol (5.0.0) did not have -> the code that such a client gets; some panic on unknown
numbers."""


def status(code: int, message: str) -> Status:
    """Return the status of a code, which may be a bare number of a broker."""
    if code == _OK_CODE:
        return OK
    try:
        return Status(code=Code.ValueType(code), message=message)
    except ValueError:
        return Status(code=Code.INTERNAL_SERVER_ERROR, message=message)


_DIGITS_MAX = 9
"""Digits of a number of a version: `int` raises for texts of thousands of digits."""


def is_old(metadata: Mapping[str, str]) -> bool:
    """Return whether a client is older than 5.0.3 or does not say; then it gets codes of the first protocol only."""
    parts = metadata.get("x-mq-client-version", "").lstrip("vV").split("-")[0].split(".")
    if len(parts) < 3 or not all(part.isdecimal() and len(part) <= _DIGITS_MAX for part in parts[:3]):
        return True
    return tuple(int(part) for part in parts[:3]) < _FIRST_COMPLETE_VERSION


def for_client(metadata: Mapping[str, str], given: Status) -> Status:
    """Return the status with a code that this client knows."""
    if given.code in _LATER_CODES and is_old(metadata):
        return Status(code=_LATER_CODES[given.code], message=given.message)
    return given


def downgrade(response: Message) -> None:
    """Replace later codes in an answer, its own and its entries', for a client that knows only the first protocol."""
    for holder in (response, *getattr(response, "entries", ())):
        given: Status = holder.status
        if given.code in _LATER_CODES:
            given.code = _LATER_CODES[given.code]


def of_rpc_error(error: RpcError, what: str) -> StatusError:
    """Return the client's error when a call to a broker or the controller failed.

    Args:
        error: how it failed.
        what: the call in words, `the broker b1`.
    """
    if isinstance(error, NotProcessedError) or error.status is GrpcStatus.UNAVAILABLE:
        return StatusError(Code.HA_NOT_AVAILABLE, f"{what} cannot be reached now; try again")
    if error.status is GrpcStatus.DEADLINE_EXCEEDED:
        return StatusError(Code.PROXY_TIMEOUT, f"{what} did not answer in time; what was asked may have been done")
    if error.status is GrpcStatus.RESOURCE_EXHAUSTED:
        return StatusError(Code.TOO_MANY_REQUESTS, f"{what} has too much to do; try again later")
    if error.status is GrpcStatus.INVALID_ARGUMENT:
        return StatusError(Code.BAD_REQUEST, error.message)
    return StatusError(Code.INTERNAL_SERVER_ERROR, f"the call to {what} failed: {error.message}")
