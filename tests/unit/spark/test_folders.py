"""Imports go down: `jobs -> source | sink -> wire -> what stands beside the folders`."""

import re
from pathlib import Path

import pytest

from tests.harness.standalone import ROOT

PACKAGE = ROOT / "spark" / "popwheel_spark"
LEVELS = {"": 0, "wire": 1, "source": 2, "sink": 2, "jobs": 3}
DOORS = ("__init__", "data_source", "session", "package")
"""What users come in by may know what is behind it."""
FILES_MAX = 24


def imports(file: Path) -> set[str]:
    """The folders of this package that a file imports from, now or later."""
    names = re.findall(r"^\s*from popwheel_spark(?:\.(\w+))?(?:\.\w+)? import", file.read_text(), re.MULTILINE)
    return {name if name in LEVELS else "" for name in names}


@pytest.mark.parametrize("folder", LEVELS)
def test_imports_go_down_and_never_across(folder: str) -> None:
    for file in (PACKAGE / folder).glob("*.py"):
        if folder or file.stem not in DOORS:
            wrong = [each for each in imports(file) if each != folder and LEVELS[each] >= LEVELS[folder]]
            assert not wrong, f"{file.name} imports from {wrong}"


@pytest.mark.parametrize("folder", [folder for folder in LEVELS if folder])
def test_each_folder_says_what_is_in_it(folder: str) -> None:
    said = (PACKAGE / folder / "README.md").read_text()
    files = [file.name for file in (PACKAGE / folder).glob("*.py") if file.name != "__init__.py"]
    assert len(files) <= FILES_MAX
    assert set(re.findall(r"`(\w+\.py)`", said)) == set(files)
