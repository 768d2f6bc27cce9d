"""examples/airflow: Airflow's names are stand-ins here, and the words of its tasks are read by the jobs themselves."""

import runpy
import shlex
import string
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self

import pytest

from popwheel_spark.jobs.command import group
from tests.harness.standalone import ROOT

FILE = ROOT / "examples" / "airflow" / "popwheel_daily.py"
RENDERED = {"DAY": "2026-01-31", "FROM": "2026-01-31T00:00:00Z", "UNTIL": "2026-02-01T00:00:00Z"}
"""What Airflow makes of the templates."""


class SkippedError(Exception):
    """Stands for AirflowSkipException."""


class FailedError(Exception):
    """Stands for AirflowFailException."""


class Operator:
    """Stands for BashOperator: runs nothing, and ends as it is told."""

    exit_code = 0

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.after: list[Operator] = []
        Dag.tasks.append(self)

    def __rshift__(self, other: "Operator") -> "Operator":
        other.after.append(self)
        return other

    def execute(self, context: object) -> str:
        """Skip, as the real one does, on the exit codes that it was given."""
        if self.exit_code in self.given["skip_on_exit_code"]:
            raise SkippedError
        if self.exit_code:
            raise RuntimeError(self.exit_code)
        return "done"


class Dag:
    """Stands for DAG."""

    tasks: list[Operator]

    def __init__(self, name: str, **given: Any) -> None:
        self.name, self.given = name, given
        Dag.tasks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def timetable(cron: str, *, timezone: str) -> str:
    """Stands for CronDataIntervalTimetable."""
    return f"{cron} {timezone}"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The names of the file, with stand-ins for what it imports of Airflow."""
    names: dict[str, dict[str, object]] = {
        "airflow": {},
        "airflow.sdk": {"DAG": Dag, "CronDataIntervalTimetable": timetable},
        "airflow.sdk.exceptions": {"AirflowFailException": FailedError, "AirflowSkipException": SkippedError},
        "airflow.providers": {},
        "airflow.providers.standard": {},
        "airflow.providers.standard.operators": {},
        "airflow.providers.standard.operators.bash": {"BashOperator": Operator},
    }
    for name, members in names.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("ENDPOINT", "ADMIN", "LAKE", "TOPICS", "GROUP"):
        monkeypatch.delenv(f"POPWHEEL_{name}", raising=False)
    yield runpy.run_path(str(FILE))


def test_it_archives_then_audits_then_reports_one_day_after_the_other(example: dict[str, Any]) -> None:
    dag = example["dag"]
    archive, audit, report = Dag.tasks
    assert [task.given["task_id"] for task in Dag.tasks] == ["archive", "audit", "delivery_report"]
    assert (archive.after, audit.after, report.after) == ([], [archive], [audit])
    assert dag.name == "popwheel_daily" and dag.given["schedule"] == "0 0 * * * UTC"
    assert dag.given["max_active_runs"] == 1 and dag.given["catchup"] is False


def test_the_jobs_take_the_words_of_the_tasks(example: dict[str, Any]) -> None:
    jobs = group().commands
    for task in Dag.tasks:
        environment = task.given["env"] | RENDERED
        assert environment.keys() == task.given["env"].keys(), "what is rendered is what was given"
        words = shlex.split(string.Template(task.given["bash_command"]).substitute(environment))
        command, job, *flags = words
        assert command == "popwheel-spark"
        assert jobs[job].make_context(job, flags).params
        assert task.given["append_env"], "keys and tokens come by the environment"


def test_only_a_cluster_that_does_not_answer_is_asked_again(example: dict[str, Any]) -> None:
    for task in Dag.tasks:
        assert task.execute({}) == "done"
        for code, kind in ((1, FailedError), (2, FailedError), (3, RuntimeError), (4, RuntimeError)):
            task.exit_code = code
            with pytest.raises(kind):
                task.execute({})
        task.exit_code = 0
