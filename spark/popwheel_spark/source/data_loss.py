"""Handling of messages that were deleted before they were read."""

import logging

from popwheel_spark.errors import DataLossError
from popwheel_spark.wire.offsets import Queue

_log = logging.getLogger("popwheel_spark")


def loss_sentence(queue: Queue, begin: int, end: int, reason: str) -> str:
    """Return a sentence about messages that are gone.

    Args:
        queue: of which.
        begin: offset of the first.
        end: offset behind the last.
        reason: why.
    """
    return f"{queue}: the messages from offset {begin} up to {end} are gone: {reason}"


def report_loss(what: str, *, fail: bool) -> None:
    """Report that messages are gone.

    Args:
        what: is gone.
        fail: `failOnDataLoss`; else it is only written to the log.

    Raises:
        DataLossError: if it is to fail.
    """
    if fail:
        raise DataLossError(f"{what}. Set failOnDataLoss=false to go on without them")
    _log.warning("%s. They are left out, as failOnDataLoss is false", what)
