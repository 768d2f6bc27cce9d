"""What `make release` puts into wheels, and what it refuses."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from popwheel_spark.package import needed_files
from tests.unit.source import ROOT
from tools.clean_install import InstallError
from tools.clean_spark import check_alone
from tools.release import MINORS, NOTES, SPARK, ReleaseError, check_contents, check_notes, pythons


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Distribution -> its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    for each in (ROOT, SPARK):
        subprocess.run(words, cwd=each, check=True, capture_output=True)
    return {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}


def modules(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if name.endswith(".py")}


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_wheels_have_the_packages_alone_and_one_of_them_has_all(wheels: Mapping[str, Path]) -> None:
    assert set(wheels) == {"popwheel", "popwheel_spark"}
    for wheel in wheels.values():
        check_contents(wheel)
    folders = [*(ROOT / "services").glob("*/popwheel_*"), ROOT / "spark" / "popwheel_spark"]
    files = {path.relative_to(folder.parent).as_posix() for folder in folders for path in folder.rglob("*.py")}
    assert modules(wheels["popwheel"]) == files


def test_the_package_for_spark_has_what_it_imports_and_hardly_more(wheels: Mapping[str, Path]) -> None:
    had = modules(wheels["popwheel_spark"])
    assert set(needed_files()) <= had < modules(wheels["popwheel"])
    assert {name.partition("/")[0] for name in had} == {"popwheel_common", "popwheel_rpc", "popwheel_spark"}
    assert len(had) < 1.15 * len(needed_files())


VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "spark/pyproject.toml": r'^version = "(.+)"$',
    "helm/popwheel/Chart.yaml": r"(?:^(?:version|appVersion): |image: popwheel:)(.+)$",
    "Dockerfile": r'image\.version="(.+?)"|popwheel:(\d\S+)',
    "spark/Dockerfile": r'image\.version="(.+?)"|spark:(\d\S+?)`',
    "Makefile": r"popwheel-spark:(\d[\d.]+\d)",
    "tests/e2e/conftest.py": r"popwheel:(\d[\d.]+\d)",
    "compose.yaml": r":-popwheel:([^}]+)",
    "compose.cluster.yaml": r":-popwheel:([^}]+)",
    "helm/popwheel/README.md": r"popwheel:(\d[\d.]+\d)",
    "docs/start/kubernetes.md": r"popwheel:(\d\S+)",
    "docs/use/testing.md": r"popwheel:(\d[^\"]+)",
    "docs/operate/failures.md": r"popwheel:(\d\S+)",
}
"""File -> where it says which version this is."""


@pytest.mark.parametrize("name", VERSIONS)
def test_all_places_say_the_same_version(name: str) -> None:
    matches = re.finditer(VERSIONS[name], (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    reported = {group for match in matches for group in match.groups() if group}
    assert {version.rstrip(",.") for version in reported} == {project(ROOT)["project"]["version"]}


def test_this_version_is_written_down() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    check_notes(project(ROOT)["project"]["version"], changelog)
    assert re.findall(r"^## (.*)$", changelog, re.MULTILINE)[0] == "[Unreleased]"
    with pytest.raises(ReleaseError, match=r"no heading `## \[9\.9\.9\]"):
        check_notes("9.9.9", changelog)
    with pytest.raises(ReleaseError, match=r"notes of the tag into .*9\.9\.9\.txt"):
        check_notes("9.9.9", "## [9.9.9] - 2030-01-01")


def test_git_keeps_the_notes_as_they_are() -> None:
    """A line that begins with # is a comment to git, which it leaves out of the tag."""
    assert [line for path in NOTES.iterdir() for line in path.read_text().splitlines() if line.startswith("#")] == []


def test_both_have_one_licence() -> None:
    folders = (ROOT, SPARK)
    assert len({(folder / "LICENSE").read_text() for folder in folders}) == 1


def test_what_comes_along_with_the_package_for_spark_is_looked_at() -> None:
    check_alone(["click", "numpy", "popwheel-spark"])
    with pytest.raises(InstallError, match="brings fastapi, popwheel, which"):
        check_alone(["fastapi", "numpy", "popwheel", "popwheel-spark"])


@pytest.mark.parametrize(
    "name", ["services/cli/main.py", "tests/__init__.py", "popwheel_cli/tests/a.py", "popwheel_cli/test_main.py"]
)
def test_what_no_user_needs_is_found(name: str, tmp_path: Path) -> None:
    path = tmp_path / "popwheel-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("popwheel_cli/main.py", "")
        made.writestr(name, "")
    with pytest.raises(ReleaseError, match=re.escape(name.partition("/")[0])):
        check_contents(path)


@pytest.mark.parametrize("name", ["popwheel", "popwheel_spark"])
def test_an_index_is_notified_who_where_and_for_which_pythons(wheels: Mapping[str, Path], name: str) -> None:
    with zipfile.ZipFile(wheels[name]) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(metadata).decode().splitlines()
    for wanted in ("Author: ", "License-Expression: Apache-2.0", "Project-URL: Source, https://"):
        assert [line for line in lines if line.startswith(wanted)], wanted
    for minor in MINORS:
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in lines


def test_interpreters_are_taken_by_their_own_word() -> None:
    own = sys.version_info.minor
    assert pythons([sys.executable]) == {own: sys.executable}
    with pytest.raises(ReleaseError, match="is none of Python"):
        pythons(["no-such-python"])
