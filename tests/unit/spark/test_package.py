"""The zip file for the workers of a cluster: what it needs, and nothing of the servers."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from popwheel_spark.package import needed_files, write_package
from tests.harness.standalone import ROOT

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.path = [sys.argv[1], *(each for each in sys.path if each and "popwheel" not in each and each not in sys.argv[2:])]
import popwheel_spark
for module in pkgutil.walk_packages(popwheel_spark.__path__, "popwheel_spark."):
    importlib.import_module(module.name)
ours = [module for name, module in sys.modules.items() if name.startswith("popwheel_")]
print(len(ours), *{module.__file__ for module in ours if not module.__file__.startswith(sys.argv[1])})
"""
OTHER_FILES_MAX = 50
"""Beside the package's own; 43 of what had been 210 in the zip, when this was written."""


def test_all_of_it_is_imported_from_the_zip_alone(tmp_path: Path) -> None:
    file = tmp_path / "popwheel.zip"
    write_package(file)
    paths = [str(path) for path in (ROOT, ROOT / "spark", *(ROOT / "services").iterdir())]
    words = [sys.executable, "-c", IMPORT_ALL, str(file), *paths]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    count, *elsewhere = ended.stdout.split()
    assert elsewhere == [] and int(count) > OTHER_FILES_MAX


def test_it_holds_nothing_that_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "popwheel.zip"
    write_package(file)
    names = ZipFile(file).namelist()
    assert names == [*needed_files()]
    others = [name for name in names if not name.startswith("popwheel_spark/")]
    assert {name.partition("/")[0] for name in others} == {"popwheel_common", "popwheel_rpc"}
    assert len(others) <= OTHER_FILES_MAX
    own = {path.relative_to(ROOT / "spark").as_posix() for path in (ROOT / "spark" / "popwheel_spark").rglob("*.py")}
    assert own == {*names} - {*others}


def test_a_name_that_spark_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.zip"):
        write_package(tmp_path / "popwheel.whl")
