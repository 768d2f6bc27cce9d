"""Renewing what services show one another: what is done when, and that nobody is refused meanwhile."""

import datetime
import random
from dataclasses import replace
from heapq import heappop, heappush

import pytest
from cryptography import x509

from popwheel_cli.certificate_set import (
    AUTHORITY_DAYS,
    DAYS,
    SPREAD,
    CertificateSet,
    _certificates,
    _is_by,
    _names,
    next_step,
)

NAMES = ("*.popwheel-broker.n.svc", "*.popwheel-controller.n.svc")
BEGAN = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
MINUTE = datetime.timedelta(minutes=1)
CALL = -1


def after(held: CertificateSet, days: float = 0.0, names: tuple[str, ...] = NAMES) -> tuple[CertificateSet, str]:
    """Result of a call a number of days after the beginning, and its reason."""
    step = next_step(held, names, BEGAN + days * DAY)
    return (held, "") if step is None else (step.made, step.why)


def shown(held: CertificateSet) -> x509.Certificate:
    return x509.load_pem_x509_certificate(held.certificate)


@pytest.fixture(scope="module")
def new() -> CertificateSet:
    held, why = after(CertificateSet())
    assert why == "there are an authority and a certificate now"
    return held


def test_a_first_call_makes_all_and_the_next_ones_nothing(new: CertificateSet) -> None:
    (authority,) = _certificates(new.authorities)
    assert _is_by(shown(new), authority)
    assert _names(shown(new)) == set(NAMES)
    assert after(new) == (new, "")
    assert after(new, DAYS * 0.66) == (new, "")


def test_a_certificate_is_renewed_in_the_last_third_of_its_time_by_the_same_authority(new: CertificateSet) -> None:
    held, why = after(new, DAYS * 0.67)
    assert "last third" in why
    assert held == replace(new, certificate=held.certificate, key=held.key)
    assert shown(held).not_valid_after_utc == BEGAN + (0.67 * DAYS + DAYS) * DAY
    assert held.key != new.key


@pytest.mark.parametrize("removed", ["certificate", "key"])
def test_what_is_taken_out_is_made_at_once(new: CertificateSet, removed: str) -> None:
    held, why = after(replace(new, **{removed: b""}))
    assert why == "there is no certificate"
    assert held.authorities == new.authorities
    assert held.certificate != new.certificate


def test_new_names_come_to_those_before_until_the_next_renewal(new: CertificateSet) -> None:
    held, why = after(new, 1, ("*.other",))
    assert why == "there are new names"
    assert _names(shown(held)) == {"*.other", *NAMES}
    assert after(held, 2, ("*.other",)) == (held, "")
    assert after(held, 2) == (held, "")
    held, why = after(held, 1 + DAYS * 0.67, ("*.other",))
    assert _names(shown(held)) == {"*.other"}


@pytest.mark.parametrize("asked", [True, False])
def test_an_authority_is_replaced_in_three_steps(new: CertificateSet, asked: bool) -> None:
    """Because somebody took out its key, or because it is in the last third of its time."""
    if asked:
        day = 1.0
        held, why = after(replace(new, authority_key=b""), day)
    else:
        day = AUTHORITY_DAYS * 0.67
        held = CertificateSet(**{**_fields(new), **_fields_of_certificate(after(new, day - 40)[0])})
        held, why = after(held, day)
    assert "which all are to trust before it makes a certificate" in why
    before, later = _certificates(held.authorities)
    assert _is_by(shown(held), before)
    assert after(held, day + 0.9 / 24) == (held, "")

    held, why = after(held, day + 1.1 / 24)
    assert why == "there is a new authority"
    assert _is_by(shown(held), later)
    assert len(_certificates(held.authorities)) == 2
    assert after(held, day + 1.9 / 24) == (held, "")

    held, why = after(held, day + 2.2 / 24)
    assert why == "the previous authority is not trusted any more"
    assert _certificates(held.authorities) == [later]
    assert after(held, day + 3) == (held, "")


def _fields(held: CertificateSet) -> dict[str, bytes]:
    return {name: getattr(held, name) for name in CertificateSet.__dataclass_fields__}


def _fields_of_certificate(held: CertificateSet) -> dict[str, bytes]:
    return {"certificate": held.certificate, "key": held.key}


def test_what_is_out_of_date_is_replaced_at_once(new: CertificateSet) -> None:
    """Nobody takes it any more: there is nobody to wait for."""
    held, why = after(new, DAYS + 1)
    assert why == "there is no certificate"
    held, why = after(replace(new, authority_key=b""), DAYS + 1)
    assert why == "there are an authority and a certificate now"
    assert _is_by(shown(held), _certificates(held.authorities)[-1])


@pytest.mark.parametrize("field", CertificateSet.__dataclass_fields__)
def test_what_is_no_certificate_is_refused(new: CertificateSet, field: str) -> None:
    with pytest.raises(ValueError, match="PEM"):
        after(replace(new, **{field: b"no"}))


@pytest.mark.parametrize("seed", range(5))
def test_no_two_processes_ever_refuse_each_other(seed: int) -> None:
    """Twelve years: calls once a week or in a row, steps that arrive late, keys of authorities that are taken out."""
    chance = random.Random(seed)
    processes = range(3)
    held, _ = after(CertificateSet())
    seen = dict.fromkeys(processes, held)
    events: list[tuple[datetime.datetime, int]] = []
    authorities = {held.authority_key}
    for week in range(12 * 52):
        for minutes in (0, 1, 59, 61, 90) if chance.random() < 0.3 else (0,):
            heappush(events, (BEGAN + 7 * week * DAY + minutes * MINUTE, CALL))
    while events:
        at, process = heappop(events)
        if process != CALL:
            seen[process] = held
        else:
            if chance.random() < 0.02:
                held = replace(held, authority_key=b"")
            step = next_step(held, NAMES, at)
            if step is None:
                continue
            held = step.made
            authorities.add(held.authority_key)
            for process in processes:
                heappush(events, (at + chance.random() * SPREAD, process))
        for one in {(view.certificate, view.authorities) for view in seen.values()}:
            certificate = x509.load_pem_x509_certificate(one[0])
            assert certificate.not_valid_before_utc <= at < certificate.not_valid_after_utc
            for view in seen.values():
                issuers = [each for each in _certificates(view.authorities) if _is_by(certificate, each)]
                assert [each.not_valid_after_utc > at for each in issuers] == [True]
    assert len(authorities) > 5
