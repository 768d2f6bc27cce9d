"""Where jobs run."""

import re

import pytest

from popwheel_spark.jobs.job_session import job_session
from popwheel_spark.jobs.outcome import InputError
from tests.harness.standalone import ROOT


def test_jobs_do_not_run_by_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://h:1")
    with pytest.raises(InputError, match="do not run by Spark Connect"):
        job_session("audit")


def test_the_chart_names_the_release_of_spark_that_is_tested() -> None:
    (tested,) = re.findall(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    schema = (ROOT / "helm" / "popwheel" / "values.schema.json").read_text()
    template = (ROOT / "helm" / "popwheel" / "templates" / "spark.yaml").read_text()
    assert f'.sparkVersion | default "{tested}"' in template
    assert re.search(rf'"sparkVersion": {{\s+"default": "{re.escape(tested)}"', schema)
