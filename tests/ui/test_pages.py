"""What holds of every page: it answers, asks nobody else, is quiet, can be read by all, and fits a telephone."""

import re
import urllib.request
from html.parser import HTMLParser
from typing import Final

from playwright.sync_api import Browser, expect

from tests.ui.addresses import addresses
from tests.ui.known import HOSTILE
from tests.ui.populated import Populated
from tests.ui.watched import Watched, watched

NARROW: Final = {"width": 360, "height": 780}
EVENT: Final = re.compile(r"^on[a-z]+$")

FRAME: Final = """() => ({
    titles: document.title.length > 0,
    headings: document.querySelectorAll("h1").length,
    mains: document.querySelectorAll("main").length,
    banner: document.querySelectorAll("body > header").length,
    navigation: document.querySelectorAll("nav[aria-label]").length > 0,
    language: document.documentElement.lang,
    wider_by: document.documentElement.scrollWidth - window.innerWidth,
    unnamed: [...document.querySelectorAll("table")].filter(each => !each.querySelector("th[scope=col]")).length,
})"""

FOCUS: Final = """() => {
    const focused = document.activeElement;
    const style = getComputedStyle(focused);
    const isShown = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
    return [focused.tagName, isShown, focused.outerHTML.slice(0, 120)];
}"""


class _Parts(HTMLParser):
    """Notes what a policy would forbid, and tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forbidden: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = {name for name, _ in attrs}
        inline = {name for name in names if name == "style" or EVENT.match(name)}
        if tag == "style" or inline or (tag == "script" and "src" not in names):
            self.forbidden.append(f"<{tag} {sorted(names)}>")


def test_every_page_is_sound(tab: Watched, populated: Populated) -> None:
    faults = []
    for address in addresses(populated.known):
        tab.go(address)
        expect(tab.page.locator("#live .skeleton")).to_have_count(0, timeout=30_000)
        frame = tab.page.evaluate(FRAME)
        wanted = {"titles": True, "headings": 1, "mains": 1, "banner": 1, "navigation": True, "language": "en"}
        faults += [f"{address}: {name} is {frame[name]}" for name, value in wanted.items() if frame[name] != value]
        faults += [f"{address}: {frame['unnamed']} tables without headings"] * bool(frame["unnamed"])
        faults += [f"{address}: {violation}" for violation in tab.violations()]
    assert not faults, "\n".join(faults)
    tab.is_clean()


def test_every_page_fits_a_telephone(browser: Browser, populated: Populated) -> None:
    with watched(browser, populated.url, viewport=NARROW, color_scheme="dark", has_touch=True) as tab:
        wide = []
        for address in addresses(populated.known):
            tab.go(address)
            expect(tab.page.locator("#live .skeleton")).to_have_count(0, timeout=30_000)
            if (wider_by := tab.page.evaluate(FRAME)["wider_by"]) > 0:
                wide.append(f"{address} is {wider_by} px too wide")
        assert not wide, "\n".join(wide)
        tab.is_clean()


def test_every_page_shows_the_same_without_a_script(browser: Browser, populated: Populated) -> None:
    with watched(browser, populated.url, java_script_enabled=False) as tab:
        for address in addresses(populated.known):
            tab.go(f"{address}{'&' if '?' in address else '?'}wait=1")
            assert tab.page.locator("#live .skeleton").count() == 0, f"{address} waits for a script"
            assert tab.page.locator("#live section, #live table, #live .empty").count() > 0, f"{address} is empty"
        tab.is_clean()


def test_no_page_has_a_style_or_script_in_it(populated: Populated) -> None:
    for address in addresses(populated.known):
        with urllib.request.urlopen(f"{populated.url}{address}", timeout=30) as answer:
            policy, text = answer.headers["content-security-policy"], answer.read().decode()
        assert policy.startswith("default-src 'self'") and "unsafe" not in policy, f"{address}: {policy}"
        parts = _Parts(text)
        assert not parts.forbidden, f"{address}: {parts.forbidden}"
        assert parts.tags.count("script") == 1, f"{address} has a script of somebody else"


def test_keys_lead_to_all_that_can_be_clicked_and_show_where_one_is(tab: Watched) -> None:
    tab.go("/topics")
    unseen = []
    for step in range(25):
        tab.page.keyboard.press("Tab")
        name, is_shown, html = tab.page.evaluate(FOCUS)
        if step == 0:
            assert "skip" in html, f"the first key leads to {html}, not past the navigation"
        if name != "BODY" and not is_shown:
            unseen.append(html)
    assert not unseen, "\n".join(unseen)


def test_hostile_strings_are_shown_and_do_nothing(tab: Watched, populated: Populated) -> None:
    for text, message_id in zip(HOSTILE, populated.known.hostile, strict=True):
        tab.go(f"/messages/Hostile/{message_id}")
        expect(tab.page.locator("#live .skeleton")).to_have_count(0, timeout=30_000)
        body = tab.page.locator("pre.body").text_content()
        assert body == text, f"{text[:60]!r} is shown as {body!r}"
        assert tab.page.locator("img, iframe, #live script").count() == 0
        assert tab.page.locator(".facts").first.get_by_text(text, exact=True).count() >= 1, f"no key {text[:60]!r}"
    tab.is_clean()
