"""requirements.lock goes with pyproject.toml: what one asks for, the other has in a version that will do."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.source import ROOT

PROJECTS = {
    folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in (".", "spark")
}
EXTRAS = PROJECTS["."]["optional-dependencies"]
OF_USERS = ("grpcio", "kubernetes", "oidc", "otel", "redis", "spark")
"""The extras that a user installs; the others are for those who change Popwheel."""


def is_own(wanted: Requirement) -> bool:
    """Return whether it is a distribution of this repository: those go together in one version."""
    return wanted.name.partition("-")[0] == "popwheel"


def asked_for() -> set[Requirement]:
    texts = [text for project in PROJECTS.values() for text in project["dependencies"]]
    extras = [extra for project in PROJECTS.values() for extra in project.get("optional-dependencies", {}).values()]
    texts += [text for extra in extras for text in extra]
    return {wanted for wanted in map(Requirement, texts) if not is_own(wanted)}


def test_all_that_is_asked_for_is_locked() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE))
    missing = {
        str(wanted) for wanted in asked_for() if not wanted.specifier.contains(locked[canonicalize_name(wanted.name)])
    }
    assert missing == set(), "run make lock"
    assert "popwheel" not in lock.replace("requirements.lock pyproject.toml", "")


def test_users_are_asked_for_ranges_and_tools_are_pinned() -> None:
    texts = [text for project in PROJECTS.values() for text in project["dependencies"]]
    texts += [text for name in OF_USERS for text in EXTRAS[name]]
    texts += [text for extra in PROJECTS["spark"]["optional-dependencies"].values() for text in extra]
    for wanted in map(Requirement, texts):
        if not is_own(wanted):
            assert {each.operator for each in wanted.specifier} <= {">=", "<"}, wanted
            assert ">=" in str(wanted), wanted
    for name in EXTRAS.keys() - {*OF_USERS, "all"}:
        for wanted in map(Requirement, EXTRAS[name]):
            assert wanted.name == "popwheel" or [each.operator for each in wanted.specifier] == ["=="], wanted


def test_the_package_for_spark_asks_for_the_same_as_the_extra() -> None:
    of_spark = PROJECTS["spark"]["optional-dependencies"]
    own = {*PROJECTS["spark"]["dependencies"], *of_spark["pyspark"], *of_spark["report"]}
    assert own - {*PROJECTS["."]["dependencies"]} == {*EXTRAS["spark"]}


def test_all_is_every_extra_of_users() -> None:
    (wanted,) = map(Requirement, EXTRAS["all"])
    assert wanted.name == "popwheel" and wanted.extras == set(OF_USERS)
