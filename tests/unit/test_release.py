"""What `make release` puts into wheels, and what it refuses."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.source import ROOT
from tools.release import MINORS, ReleaseError, check_contents, pythons


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def test_a_wheel_has_the_packages_alone(wheel: Path) -> None:
    check_contents(wheel)
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    tops = {name.partition("/")[0] for name in names if not name.startswith("popwheel-")}
    services = {path.name for path in (ROOT / "services").glob("*/popwheel_*")}
    assert tops == services | {"popwheel_spark"}


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


def test_an_index_is_told_who_where_and_for_which_pythons(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(metadata).decode().splitlines()
    for wanted in ("Author: ", "Keywords: ", "License-Expression: Apache-2.0", "Project-URL: Source, https://"):
        assert [line for line in lines if line.startswith(wanted)], wanted
    for minor in MINORS:
        assert f"Classifier: Programming Language :: Python :: 3.{minor}" in lines


def test_interpreters_are_taken_by_their_own_word() -> None:
    own = sys.version_info.minor
    assert pythons([sys.executable]) == {own: sys.executable}
    with pytest.raises(ReleaseError, match="is none of Python"):
        pythons(["no-such-python"])
