"""The simulator notices when a message that fails by itself stops the others, or is lost."""

import sys

import pytest

from popwheel_broker.progress.pop_state import PopState
from popwheel_broker.records import fault
from popwheel_broker.state.retrial import Retrial
from tests.sim.failing_records import NAME
from tests.sim.run import run_seed

SEED = 12_000_213
"""Messages of it fail as they are given out, are redelivered and fire."""


def test_others_go_on_and_nothing_is_lost() -> None:
    assert run_seed(SEED, only=(NAME,)).violations == ()


def test_it_notices_a_broker_that_ends_by_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault._RecordStep, "__exit__", lambda *_: None)
    assert run_seed(SEED, only=(NAME,)).violations


def test_it_notices_a_retry_that_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retrial, "retry", Retrial.drop)
    numbers = {violation[:2] for violation in run_seed(SEED, only=(NAME,)).violations}
    assert numbers & {"P1", "T3", "S6"}


def test_it_notices_a_message_that_stays_where_it_was_set_aside_from(monkeypatch: pytest.MonkeyPatch) -> None:
    close = PopState.close

    def close_but_not_what_is_set_aside(state: PopState, check_point_id: int, bits: int) -> None:
        if sys._getframe(1).f_code.co_name != "set_aside_delivery":
            close(state, check_point_id, bits)

    monkeypatch.setattr(PopState, "close", close_but_not_what_is_set_aside)
    # In every second seed it is given out for good; in others it comes again, which ends its entry, live as in the log.
    numbers = {violation[:2] for violation in run_seed(12_000_206, only=(NAME,)).violations}
    assert numbers == {"L2", "S6"}
