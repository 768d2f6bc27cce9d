"""The mutants of `make mutants` are changes of the code as it is."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import ROOT, UNIT_TESTS, Mutant, StaleMutantError, environment_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_changes_one_place(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutant.applied(source) != source
    assert (ROOT / UNIT_TESTS / mutant.tests).is_file()


def test_what_runs_is_the_copy_and_not_what_is_installed(tmp_path: Path) -> None:
    """`python -m` would take the modules of the checkout, and no simulator would meet a mutant."""
    package = tmp_path / "services" / "broker" / "popwheel_broker"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    words = [sys.executable, "-c", "import popwheel_broker; print(popwheel_broker.__file__)"]
    said = subprocess.run(
        words, cwd=tmp_path, env=environment_of(tmp_path), capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout.strip() == str(package / "__init__.py")


def test_names_are_distinguished_and_a_stale_one_is_said() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 40
    with pytest.raises(StaleMutantError, match="0 times"):
        MUTANTS[0].applied("def decode():\n    return 1\n")
    with pytest.raises(StaleMutantError, match="there is no decode"):
        MUTANTS[0].applied("def encode():\n    return 1\n")
