"""How many connections a process takes that may not open as many files."""

import resource

import pytest

from services.cli.process import listeners
from services.rpc.limits import Limits


@pytest.mark.parametrize(
    ("open_files", "connections"), [(64, 1), (256, 192), (1_024, 768), (20_000, 18_976), (1_048_576, 1_047_552)]
)
def test_files_are_kept_back_for_the_disk(open_files: int, connections: int) -> None:
    assert listeners.connections_within(open_files) == connections


def test_the_soft_limit_is_raised_and_the_hard_one_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 1_024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: given.append(limits))
    assert listeners.within_open_files(Limits(connections_max=20_000)).connections_max == 768
    assert listeners.within_open_files(Limits(connections_max=100)).connections_max == 100
    assert given == [(1_024, 1_024)] * 2


def test_a_process_without_a_limit_of_files_takes_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    assert listeners.within_open_files(Limits(connections_max=7)).connections_max == 7
