"""requirements.lock goes with pyproject.toml: what one asks for, the other has in a version that will do."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_USERS = ("grpcio", "kubernetes", "oidc", "otel", "redis", "spark")
"""The extras that a user installs; the others are for those who change Popwheel."""


def asked_for() -> set[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra)]
    return {wanted for wanted in map(Requirement, texts) if wanted.name != "popwheel"}


def test_all_that_is_asked_for_is_locked() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE))
    missing = {
        str(wanted) for wanted in asked_for() if not wanted.specifier.contains(locked[canonicalize_name(wanted.name)])
    }
    assert missing == set(), "run make lock"


def test_users_are_asked_for_ranges_and_tools_are_pinned() -> None:
    for text in [*PROJECT["dependencies"], *(text for name in OF_USERS for text in EXTRAS[name])]:
        assert {each.operator for each in Requirement(text).specifier} <= {">=", "<"}, text
        assert ">=" in text, text
    for name in EXTRAS.keys() - {*OF_USERS, "all"}:
        for wanted in map(Requirement, EXTRAS[name]):
            assert wanted.name == "popwheel" or [each.operator for each in wanted.specifier] == ["=="], wanted


def test_all_is_every_extra_of_users() -> None:
    (wanted,) = map(Requirement, EXTRAS["all"])
    assert wanted.name == "popwheel" and wanted.extras == set(OF_USERS)
