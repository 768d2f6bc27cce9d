"""The command `popwheel-spark`, and how each job runs, from there or as a file of spark-submit."""

import re
import sys
from typing import NoReturn

import click

from popwheel_spark.errors import PopwheelSparkError

_OURS = re.compile(r"^popwheel_spark\.\S*Error: (.+)$", re.MULTILINE)


_OF_THE_EXTRA = ("matplotlib", "py4j", "pyarrow", "pyspark")
"""Libraries of the extra `spark`: jobs import them when they run, as `--help` needs none of them."""


class JobError(PopwheelSparkError):
    """A job that cannot do what it was asked: why, and what to do about it."""


def run(command: click.Command) -> NoReturn:
    """Run a command with the words of this process, and end; whatever went wrong is one sentence.

    Args:
        command: a job, or the group of all.
    """
    try:
        code = command.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"popwheel-spark: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("popwheel-spark: interrupted", err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _OF_THE_EXTRA:
            raise
        click.echo(f'popwheel-spark: {library} is missing: pip install "popwheel[spark]"', err=True)
        sys.exit(2)
    except _known_errors() as error:
        click.echo(f"popwheel-spark: {sentence(str(error))}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _known_errors() -> tuple[type[Exception], ...]:
    """Errors whose text says enough: ours, and those of PySpark if a job has loaded it."""
    if "pyspark.errors" not in sys.modules:
        return (PopwheelSparkError,)
    from pyspark.errors import PySparkException

    return PopwheelSparkError, PySparkException


def sentence(text: str) -> str:
    """What is wrong, of an error that Spark has wrapped into traces of its own.

    Args:
        text: of the error. Without one of our errors in it, it stays as it is.
    """
    found: list[str] = _OURS.findall(text)
    return found[-1] if found else text


def group() -> click.Group:
    """All jobs."""
    from popwheel_spark.jobs.archive import archive
    from popwheel_spark.jobs.audit import audit
    from popwheel_spark.jobs.compaction import compaction
    from popwheel_spark.jobs.delivery_report import delivery_report
    from popwheel_spark.jobs.replay import replay
    from popwheel_spark.jobs.timer_forecast import timer_forecast

    return click.Group(
        "popwheel-spark",
        help="Jobs on Popwheel's topics, run by Spark: on this machine, or where spark-submit says.",
        commands=[archive, audit, compaction, delivery_report, replay, timer_forecast],
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def main() -> NoReturn:
    """Run `popwheel-spark`."""
    run(group())
