"""spark/Dockerfile, which no container engine has built here: what it says goes with the rest of the repository."""

import re
import tomllib

from tests.harness.standalone import ROOT

DOCKERFILE = (ROOT / "spark" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "spark" / "pyproject.toml").read_text())["project"]
LOCK = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))


def base() -> str:
    """The version of Spark that it begins with."""
    (version,) = re.findall(r"^ARG BASE=docker\.io/apache/spark:([\d.]+)-\S*java17\S*python3", DOCKERFILE, re.MULTILINE)
    return str(version)


def test_its_spark_is_the_one_that_everything_is_tested_with() -> None:
    assert base() == LOCK["pyspark"]
    values = (ROOT / "helm" / "popwheel" / "values.yaml").read_text()
    assert re.findall(r"sparkVersion: ([\d.]+)", values) == [base()]


def test_it_installs_the_packages_in_locked_versions_and_takes_pyspark_from_its_base() -> None:
    (words,) = re.findall(r"pip install (.+?) \\$", DOCKERFILE, re.MULTILINE)
    assert words == "--no-cache-dir --constraint requirements.lock './spark[report]'"
    assert "report" in PROJECT["optional-dependencies"]
    assert not any(wanted.startswith("pyspark") for wanted in PROJECT["dependencies"])


def test_it_says_the_version_and_the_lowest_python_of_the_package() -> None:
    assert f'org.opencontainers.image.version="{PROJECT["version"]}"' in DOCKERFILE
    (major, minor) = re.findall(r"version_info < \((\d+), (\d+)\)", DOCKERFILE)[0]
    assert PROJECT["requires-python"] == f">={major}.{minor}"


def test_all_that_it_copies_is_in_the_context() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {words.split()[0] for words in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)}
    assert copied <= let_in
    assert all((ROOT / name).exists() for name in copied)


def test_a_pod_runs_it_as_the_user_of_the_base() -> None:
    """Only the stage that builds is root's, and its last one is what is made without `--target`."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    assert [stage.splitlines()[0] for stage in stages] == [
        *("${BASE} AS build", "${BASE} AS package", "package AS e2e", "package")
    ]
    assert "USER root" in stages[0] and not any("USER" in stage for stage in stages[1:])
