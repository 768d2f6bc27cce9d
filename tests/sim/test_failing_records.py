"""The simulator notices when a message that fails by itself stops the others, or is lost."""

from dataclasses import replace

import pytest

from popwheel_broker.consume.delivery import close_record
from popwheel_broker.consume.pop_state import PopState
from popwheel_broker.core.retrial import Retrial
from popwheel_broker.log import fault
from popwheel_broker.log.record import Record, RecordKind
from tests.sim.failing_records import NAME
from tests.sim.run import run_seed

SEED = 12_000_213
"""Messages of it fail as they are delivered, are redelivered and fire."""


def test_others_go_on_and_nothing_is_lost() -> None:
    assert run_seed(SEED, only=(NAME,)).violations == ()


def test_it_notices_a_broker_that_ends_by_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault._RecordStep, "__exit__", lambda *_: None)
    assert run_seed(SEED, only=(NAME,)).violations


def test_it_notices_a_retry_that_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retrial, "retry", Retrial.drop)
    numbers = {violation[:2] for violation in run_seed(SEED, only=(NAME,)).violations}
    assert numbers & {"P1", "T3", "S6"}


def test_it_notices_a_message_that_stays_where_it_was_quarantined_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def close_nothing(revive_topic: str, delivery_id: int, bits: int) -> Record:
        return replace(close_record(revive_topic, delivery_id, bits), kind=RecordKind.COPY)

    monkeypatch.setattr("popwheel_broker.consume.quarantine.close_record", close_nothing)
    monkeypatch.setattr(PopState, "_quarantined", lambda *_: None)
    numbers = {violation[:2] for violation in run_seed(12_000_206, only=(NAME,)).violations}
    assert numbers == {"L2"}, "it has not left its delivery, live as in the log"
