"""Outcome of a job: its exit code, and the sentence of its error (docs/use/spark-jobs.md)."""

import re
import sys
from collections.abc import Iterator
from enum import IntEnum

from popwheel_spark.errors import (
    DataLossError,
    OptionError,
    PopwheelSparkError,
    RefusedError,
    UnreachableError,
)


class Exit(IntEnum):
    """Exit code of `popwheel-spark` and of each job."""

    DONE = 0
    LOST = 1
    """Messages are lost, or acknowledged without a record of it."""
    INPUT = 2
    """An option, a flag or an input is wrong: the same call fails again."""
    AWAY = 3
    """The cluster, or a part of it, does not answer: try again later."""
    OTHER = 4
    """Anything else: Spark itself, a full disk, a mistake of ours."""
    INTERRUPTED = 130


class JobError(PopwheelSparkError):
    """Failure of a job: the reason, and the remedy.

    Args:
        sentence: the message.
        code: the job's exit code.
    """

    def __init__(self, sentence: str, code: Exit = Exit.OTHER) -> None:
        super().__init__(sentence)
        self.code = code


class InputError(JobError):
    """Invalid input of a job."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, Exit.INPUT)


_CODES: dict[type[PopwheelSparkError], Exit] = {
    DataLossError: Exit.LOST,
    InputError: Exit.INPUT,
    OptionError: Exit.INPUT,
    RefusedError: Exit.INPUT,
    UnreachableError: Exit.AWAY,
}
_OURS = re.compile(r"^\W*popwheel_spark\.\S*?(\w+Error): (.+)$", re.MULTILINE)
_JAVA_FRAME = re.compile(r"^\s+at |^(JVM|Driver) stacktrace:", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_TRACE = "Traceback (most recent call last)"
_RAISED = re.compile(r"^(?:\w+\.)*\w+: .+$", re.MULTILINE)
_CALLING = "An error occurred while calling "


def outcome(error: Exception) -> tuple[Exit, str]:
    """Return the outcome of a job that an error has ended.

    Args:
        error: ours, or one of Spark's, which may have wrapped ours into traces of its own.
    """
    if isinstance(error, JobError):
        return error.code, str(error)
    if isinstance(error, PopwheelSparkError):
        return _code_of(type(error).__name__), str(error)
    found = _OURS.findall(str(error))
    if found:
        name, said = found[-1]
        return _code_of(name), said
    return Exit.OTHER, sentence(str(error))


def sentence(text: str) -> str:
    """Return the error's sentence, without the traces that Spark wraps around it.

    Args:
        text: of the error.
    """
    found = _OURS.findall(text)
    if found:
        return str(found[-1][1])
    said = _JAVA_FRAME.split(text, maxsplit=1)[0]
    before, trace, after = said.partition(_TRACE)
    lines = [line.strip().removeprefix(": ") for line in before.splitlines()]
    first = next((line for line in lines if line and not line.startswith(_CALLING)), "Spark failed")
    raised = _RAISED.findall(after)
    if trace and raised:
        return f"{first.removesuffix(':')}: {raised[-1]}"
    causes = _CAUSE.findall(text)
    return f"{first} ({causes[-1]})" if causes and causes[-1] not in first else first


def known_errors() -> tuple[type[Exception], ...]:
    """Return the error classes with a clear text: ours, and those of Spark if a job has loaded it."""
    known: list[type[Exception]] = [PopwheelSparkError]
    if "pyspark.errors" in sys.modules:
        from pyspark.errors import PySparkException

        known.append(PySparkException)
    if "py4j.protocol" in sys.modules:
        from py4j.protocol import Py4JError

        known.append(Py4JError)
    return tuple(known)


def _code_of(name: str) -> Exit:
    """Return the exit code of one of our errors, by its name: Spark forwards no more than that."""
    return next((code for kind, code in _CODES.items() if name in _names(kind)), Exit.OTHER)


def _names(kind: type[PopwheelSparkError]) -> Iterator[str]:
    yield kind.__name__
    for each in kind.__subclasses__():
        yield from _names(each)
