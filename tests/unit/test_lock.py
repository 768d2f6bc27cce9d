"""requirements.lock goes with pyproject.toml: what one asks for, the other has in that version."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.source import ROOT


def asked_for() -> set[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return {Requirement(text) for text in texts}


def test_all_that_is_asked_for_is_pinned_and_locked() -> None:
    locked = set(re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    wanted = {f"{canonicalize_name(asked.name)}{asked.specifier}" for asked in asked_for()}
    assert wanted - locked == set(), "run make lock"
