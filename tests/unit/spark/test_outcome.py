"""How jobs end: exit codes that tell, and one sentence without frames."""

import click
import pytest

from popwheel_spark.errors import DataLossError, OptionError, PopwheelSparkError, RefusedError, UnreachableError
from popwheel_spark.jobs.command import run
from popwheel_spark.jobs.outcome import Exit, InputError, JobError, outcome, sentence
from popwheel_spark.session import NoJavaError

WRAPPED = """[PYTHON_DATA_SOURCE_ERROR] Failed when reading: Traceback (most recent call last):
  File "range_reader.py", line 9, in batches
popwheel_spark.errors.{name}: {said}
 SQLSTATE: 38000
\tat org.apache.spark.sql.errors.QueryCompilationErrors$.x(QueryCompilationErrors.scala:1)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OptionError("topic", "x"), Exit.INPUT),
        (InputError("x"), Exit.INPUT),
        (RefusedError("x"), Exit.INPUT),
        (UnreachableError("x"), Exit.AWAY),
        (JobError("x", Exit.AWAY), Exit.AWAY),
        (DataLossError("x"), Exit.LOST),
        (JobError("x"), Exit.OTHER),
        (NoJavaError("x"), Exit.OTHER),
    ],
)
def test_each_of_our_errors_has_its_code(error: PopwheelSparkError, code: Exit) -> None:
    assert outcome(error) == (code, str(error))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("OptionError", Exit.INPUT),
        ("RefusedError", Exit.INPUT),
        ("UnreachableError", Exit.AWAY),
        ("DataLossError", Exit.LOST),
        ("FormatError", Exit.OTHER),
    ],
)
def test_an_error_that_spark_has_wrapped_has_the_same(name: str, code: Exit) -> None:
    assert outcome(ValueError(WRAPPED.format(name=name, said="it is so"))) == (code, "it is so")


ABORTED = """An error occurred while calling o9.save.
: org.apache.spark.SparkException: Job aborted
\tat org.apache.spark.X.y(X.scala:7)
Caused by: java.io.IOException: No space left on device
\t... 8 more"""
PYTHON = """[PYTHON_DATA_SOURCE_ERROR] Failed when writing: Traceback (most recent call last):
  File x
KeyError: 'a'
 SQLSTATE: 38000
\tat org.apache.X"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ABORTED, "org.apache.spark.SparkException: Job aborted (No space left on device)"),
        (PYTHON, "[PYTHON_DATA_SOURCE_ERROR] Failed when writing: KeyError: 'a'"),
        ("[PATH_NOT_FOUND] There is no x. SQLSTATE: 42K03", "[PATH_NOT_FOUND] There is no x. SQLSTATE: 42K03"),
        ("[A] b\n\nJVM stacktrace:\norg.apache.X: y\n\tat z", "[A] b"),
        ("\tat nowhere", "Spark failed"),
    ],
)
def test_no_frame_of_java_is_shown(text: str, said: str) -> None:
    assert sentence(text) == said
    assert outcome(ValueError(text)) == (Exit.OTHER, said)


def ends(error: BaseException | None, result: int | None = None) -> tuple[int, click.Command]:
    @click.command()
    def command() -> int | None:
        if error is not None:
            raise error
        return result

    with pytest.raises(SystemExit) as ended:
        run(command)
    assert isinstance(ended.value.code, int)
    return ended.value.code, command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (OptionError("a", "b"), 2),
        (click.UsageError("b"), 2),
        (click.ClickException("b"), 2),
        (UnreachableError("b"), 3),
        (JobError("b"), 4),
        (ZeroDivisionError("b"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_job_ends_with_its_code(
    error: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["job"])
    assert ends(error)[0] == code
    said = capsys.readouterr().err.lstrip()
    assert said.startswith("popwheel-spark: ") or error is None or isinstance(error, ZeroDivisionError)


def test_what_a_job_has_found_is_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["job"])
    assert ends(None, Exit.LOST)[0] == 1
