"""The mutants of `make mutants` are changes of the code as it is."""

import pytest

from tests.mutants.catalog import MUTANTS
from tests.mutants.mutant import ROOT, UNIT_TESTS, Mutant, StaleMutantError


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_changes_one_place(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert mutant.applied(source) != source
    assert (ROOT / UNIT_TESTS / mutant.tests).is_file()


def test_names_are_told_apart_and_a_stale_one_is_said() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 40
    with pytest.raises(StaleMutantError, match="0 times"):
        MUTANTS[0].applied("def decode():\n    return 1\n")
    with pytest.raises(StaleMutantError, match="there is no decode"):
        MUTANTS[0].applied("def encode():\n    return 1\n")
