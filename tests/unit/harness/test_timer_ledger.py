"""The account of delayed messages finds what must not happen."""

import pytest

from tests.harness.timers import TimerLedger

DUE_MS = 1_800_000_000_000


def ledger() -> TimerLedger:
    return TimerLedger(due_ms={1: DUE_MS, 2: DUE_MS}, sent={1})


def body(number: int) -> bytes:
    return b"%016dxxxx" % number


def test_all_is_well() -> None:
    account = ledger()
    account.receive(body(1), 1, DUE_MS)
    account.receive(body(1), 2, DUE_MS + 5.0)
    account.receive(body(2), 1, DUE_MS + 0.1)
    assert account.missing == 0
    account.check()


def test_one_comes_early() -> None:
    account = ledger()
    account.receive(body(1), 1, DUE_MS - 0.1)
    with pytest.raises(AssertionError, match="T1"):
        account.check()


def test_one_is_lost() -> None:
    account = ledger()
    account.receive(body(2), 1, DUE_MS)
    assert account.missing == 1
    with pytest.raises(AssertionError, match="lost"):
        account.check()


def test_one_fires_twice() -> None:
    account = ledger()
    account.receive(body(1), 1, DUE_MS)
    account.receive(body(1), 1, DUE_MS)
    with pytest.raises(AssertionError, match="twice"):
        account.check()


def test_nobody_sent_it() -> None:
    account = ledger()
    account.receive(body(1), 1, DUE_MS)
    account.receive(body(3), 1, DUE_MS)
    with pytest.raises(AssertionError, match="S2"):
        account.check()
