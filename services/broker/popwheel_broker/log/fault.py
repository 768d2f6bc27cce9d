"""Faults of a single record: the one place that distinguishes them from all other errors.

    try:
        with RECORD_STEP:
            ...  # handles one record, or a few of them
    except RecordFaultError as fault:
        ...  # one by one, and a record that fails by itself is poisoned

What the device refuses, damage of stored bytes, a format of a newer release, a lack of memory and a refusal with a
status are not a record's: they pass through as they are.
"""

from types import TracebackType

from popwheel_common.contract.put import PutResult
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

REASON_LENGTH_MAX = 300


class RecordFaultError(Exception):
    """Failure of a step that its record has caused; all other records are processed.

    Its text is the reason: ASCII and short, so that it is the same in memory and in the log.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason.encode("ascii", "backslashreplace")[:REASON_LENGTH_MAX].decode("ascii"))


_NOT_OF_A_RECORD = (OSError, CorruptDataError, UnknownFormatError, StatusError, MemoryError, RecordFaultError)


class _RecordStep:
    """Turns an unexpected error into `RecordFaultError`; without an error it costs next to nothing."""

    def __enter__(self) -> None:
        """Begin the step."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, _NOT_OF_A_RECORD):
            raise RecordFaultError(f"{type(error).__name__}: {error}") from error


RECORD_STEP = _RecordStep()


def failed_run(fault: RecordFaultError) -> PutResult:
    """Return the answer to a run that fails by itself; nothing is stored, so there is no poison message."""
    return PutResult(
        int(Code.INTERNAL_ERROR),
        f"the broker could not take this message in ({fault}); nothing of it was stored, others are not concerned",
    )
