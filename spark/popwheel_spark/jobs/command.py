"""The command `popwheel-spark`, and how each job runs, from there or as a file of spark-submit."""

import logging
import sys
from typing import NoReturn

import click

from popwheel_spark.jobs.outcome import Exit, known_errors, outcome

_log = logging.getLogger("popwheel_spark")

_INSTALLED_BY = {
    "matplotlib": "popwheel-spark[report]",
    "py4j": "popwheel-spark[pyspark]",
    "pyarrow": "popwheel-spark",
    "pyspark": "popwheel-spark[pyspark]",
}
"""Libraries that jobs import when they run (`--help` needs none) -> the extra with them."""


def run(command: click.Command) -> NoReturn:
    """Run a command with the arguments of this process, and exit; an error is one sentence.

    Args:
        command: a job, or the group of all.
    """
    try:
        code = command.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else error.format_message(), err=True)
        sys.exit(Exit.INPUT)
    except click.ClickException as error:
        click.echo(f"popwheel-spark: {' '.join(error.format_message().split())}", err=True)
        sys.exit(Exit.INPUT)
    except (click.Abort, KeyboardInterrupt):
        click.echo("popwheel-spark: interrupted", err=True)
        sys.exit(Exit.INTERRUPTED)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _INSTALLED_BY:
            raise
        click.echo(f'popwheel-spark: {library} is missing: pip install "{_INSTALLED_BY[library]}"', err=True)
        sys.exit(Exit.INPUT)
    except known_errors() as error:
        ended, said = outcome(error)
        click.echo(f"popwheel-spark: {said}", err=True)
        sys.exit(ended)
    except Exception:  # noqa: BLE001 - the last handler before the shell
        # Python would exit with 1, which means that messages are lost.
        _log.exception("popwheel-spark: an unexpected error")
        sys.exit(Exit.OTHER)
    sys.exit(code if isinstance(code, int) else Exit.DONE)


def group() -> click.Group:
    """Jobs by their names."""
    from popwheel_spark.jobs.archive import archive
    from popwheel_spark.jobs.audit import audit
    from popwheel_spark.jobs.compaction import compaction
    from popwheel_spark.jobs.dead_letter_report import dead_letter_report
    from popwheel_spark.jobs.delivery_report import delivery_report
    from popwheel_spark.jobs.replay import replay
    from popwheel_spark.jobs.timer_forecast import timer_forecast

    return click.Group(
        "popwheel-spark",
        help="Jobs on Popwheel's topics, run by Spark: on this machine, or where spark-submit says.",
        commands=[archive, audit, compaction, dead_letter_report, delivery_report, replay, timer_forecast],
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def main() -> NoReturn:
    """Run `popwheel-spark`."""
    run(group())
