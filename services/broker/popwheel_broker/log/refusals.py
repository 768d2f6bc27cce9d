"""Refusals when nothing can be written: the disk is full, the device refuses, or the writer has stopped."""

import errno
from collections.abc import Awaitable, Callable
from typing import TypeVar

from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

Call = TypeVar("Call")
Request = TypeVar("Request")
Response = TypeVar("Response")


class WriterStoppedError(StatusError):
    """Refusal by a commit log that takes no more writes, because the state of its device is unknown.

    Its codes make callers continue at the next master, which may be this broker after its restart.

    Args:
        reason: what has happened.
        outcome_unknown: whether it was under way then, so that it may be there after all; else nothing was done.
    """

    def __init__(self, reason: str, *, outcome_unknown: bool = False) -> None:
        if outcome_unknown:
            super().__init__(
                Code.SLAVE_PERSISTENCE_TIMEOUT,
                f"{reason}; the broker stops, and whether the call took effect is unknown, try it again",
            )
        else:
            super().__init__(Code.HA_NOT_AVAILABLE, f"{reason}; the broker stops, try again when it is back")


def disk_refusal(error: OSError) -> StatusError:
    """Return the error for a write that the device refused, and of which nothing is left."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_full()
    return StatusError(
        Code.INTERNAL_ERROR, f"the broker's device refused a write ({error}), nothing was stored; try again"
    )


def device_behind() -> StatusError:
    """Return the refusal of a send while too many bytes wait for the device."""
    return StatusError(
        Code.TOO_MANY_REQUESTS,
        "the device is too slow, too many bytes wait to be written (broker.waiting_bytes_max); try again later",
    )


def disk_full() -> StatusError:
    """Return the refusal of a send when the disk is nearly full, and of every write when it is full."""
    return StatusError(
        Code.INTERNAL_ERROR,
        "the broker's disk is nearly full, so it takes no messages; free some space or shorten the retention "
        "(broker.retention), receives and acks are served while there is room for their records",
    )


def naming_trouble(
    handler: Callable[[Call, Request], Awaitable[Response]],
) -> Callable[[Call, Request], Awaitable[Response]]:
    """Wrap a handler, and refuse callers whose message is damaged (S7) or cannot be read now.

    It cannot be read while the device refuses, or no more files may be open.
    """

    async def answer(call: Call, request: Request) -> Response:
        try:
            return await handler(call, request)
        except CorruptDataError as damage:
            raise StatusError(
                Code.INTERNAL_ERROR,
                f"{damage}; nothing was changed: restore the segment file from a replica or a backup",
            ) from damage
        except OSError as error:
            raise StatusError(
                Code.INTERNAL_ERROR, f"the broker's device refused a read ({error}), nothing was changed; try again"
            ) from error

    return answer
