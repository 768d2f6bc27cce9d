"""Addresses and forms that nobody in good faith makes get a page that says no, and never a fault of the server."""

import http.client
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.ui.populated import Populated, ask
from tests.ui.watched import Watched

LONG: Final = "k" * 4096

REFUSED: Final = (
    "/topics/..%2f..%2fetc%2fpasswd",
    "/topics/%2e%2e%2f%2e%2e%2fetc",
    "/topics/%00",
    "/topics/%ff%fe",
    "/groups/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
    "/groups/no-such-group",
    f"/messages/Orders/{LONG}",
    "/messages/Orders/%e2%80%aeevil",
    "/static/x/..%2f..%2fconsole.py",
    "/static/../../../etc/passwd",
    "/no/such/page",
    f"/topics/{LONG}",
)
"""Addresses of nothing."""

BORNE: Final = (
    "/topics?limit=-1",
    "/topics?limit=99999999999999999999",
    "/topics?after=%00%ff",
    f"/topics?prefix={LONG}",
    "/topics?prefix=%3Cscript%3Ealert(1)%3C/script%3E",
    "/held?after=nonsense",
    f"/held?client={LONG}",
    "/held?topic=%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
    "/timers?within_ms=-99999999999999999999",
    "/timers?within_ms=NaN&after=%00",
    "/messages?topic=Orders&key=%e2%80%ae%00",
    "/changes?limit=0&after=-1",
    f"/clients/{LONG}",
    "/?wait=%00&wait=1",
    "/theme?back=//evil.example&to=dark",
    "/theme?back=https://evil.example&to=%00",
)
"""Filters that make no sense: shown as empty, or refused."""


def raw(url: str, method: str, address: str, body: str = "", **headers: str) -> tuple[int, str, str]:
    """What the console answers to an address that no library has put in order: status, `location`, text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        words = {"accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, address, body, words)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("location", ""), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("address", REFUSED, ids=lambda address: address[:40])
def test_an_address_of_nothing_is_a_page_that_says_so(populated: Populated, address: str) -> None:
    status, _, text = raw(populated.url, "GET", address)
    assert 400 <= status < 500, f"{status}: {text[:300]}"
    assert "Traceback" not in text and "root:" not in text and "<script>alert" not in text


@pytest.mark.parametrize("address", BORNE, ids=lambda address: address[:40])
def test_filters_without_sense_are_borne(populated: Populated, address: str) -> None:
    status, location, text = raw(populated.url, "GET", address)
    assert status < 500, f"{status}: {text[:300]}"
    assert "<script>alert" not in text and "<img" not in text
    assert "evil.example" not in location


def test_a_page_about_nothing_is_sound(tab: Watched) -> None:
    tab.go("/groups/no-such-group", status=404)
    assert not tab.violations()
    tab.is_clean(errors_expected=True)


def test_a_form_of_another_site_changes_nothing(populated: Populated) -> None:
    form = "name=Forged&type=NORMAL&queues=1&csrf=guessed"
    kind = "application/x-www-form-urlencoded"
    for headers in ({}, {"origin": "https://evil.example"}, {"sec_fetch_site": "cross-site"}):
        status, _, text = raw(populated.url, "POST", "/topics", form, content_type=kind, **headers)
        assert 400 <= status < 500, f"{headers}: {status}: {text[:300]}"
    names = [each["name"] for each in ask(populated.url, "/topics?limit=100")["topics"]]
    assert "Forged" not in names


def test_a_form_is_worth_nothing_in_another_browser(populated: Populated, tab: Watched) -> None:
    tab.go("/topics")
    token = tab.page.locator("form[action='/topics'] input[name=csrf]").get_attribute("value")
    form = f"name=Replayed&type=NORMAL&queues=1&csrf={token}"
    status, _, _ = raw(populated.url, "POST", "/topics", form, content_type="application/x-www-form-urlencoded")
    assert 400 <= status < 500
