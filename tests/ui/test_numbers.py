"""Each number on a page is the one that the official client knows."""

import time
from collections.abc import Callable

from tests.ui.known import GROUPS, TYPES
from tests.ui.populated import Populated
from tests.ui.watched import Watched

PATIENCE_S = 25.0
"""Numbers of activity are sampled every ten seconds."""


def until_equal(tab: Watched, look: Callable[[], object], wanted: object) -> None:
    """Look again until a page shows what is wanted."""
    until = time.monotonic() + PATIENCE_S
    while (seen := look()) != wanted:
        assert time.monotonic() < until, f"shows {seen}, the client knows {wanted}"
        tab.page.wait_for_timeout(200)


def test_topics_are_as_the_client_made_and_filled_them(tab: Watched, populated: Populated) -> None:
    sent = populated.known.sent

    def look() -> dict[str, tuple[str, str]]:
        tab.go("/topics?wait=1")
        rows = tab.rows(str(len(TYPES)))
        return {name: (row["Type"], row["Stored"]) for name, row in rows.items() if name in wanted}

    # What is delayed is in the timer's log and not in a queue, and what is half is not sent.
    stored = {name: sent.get(name, 0) for name in TYPES if name != "Reminders"}
    wanted = {name: (TYPES[name].lower(), str(count)) for name, count in stored.items()}
    until_equal(tab, look, wanted)


def test_groups_are_as_far_as_the_client_knows(tab: Watched, populated: Populated) -> None:
    known = populated.known

    def look() -> dict[str, tuple[str, str, str]]:
        tab.go("/groups?wait=1")
        rows = tab.rows(str(len(GROUPS)))
        return {name: tuple(rows[name][column] for column in ("Waiting", "In flight", "Dead")) for name in wanted}  # type: ignore[misc]

    wanted = {
        name: (str(known.waiting[name]), str(len(known.held.get(name, ()))), str(known.dead.get(name, 0)))
        for name in ("billing", "ledger", "steps")
    }
    until_equal(tab, look, wanted)


def test_dead_letters_of_a_group_are_counted(tab: Watched, populated: Populated) -> None:
    def look() -> str:
        tab.go("/groups/fussy?wait=1")
        return tab.figures()["Dead letters"]

    until_equal(tab, look, str(populated.known.dead["fussy"]))


def test_in_flight_names_each_message_and_who_holds_it(tab: Watched, populated: Populated) -> None:
    known = populated.known
    tab.go("/held?wait=1&group=billing")
    rows = tab.page.locator("section[aria-labelledby=list] tbody tr")
    ids = {rows.nth(number).locator("th a").get_attribute("title") for number in range(rows.count())}
    assert ids == set(known.held["billing"])
    assert set(rows.locator("td:nth-child(4)").all_text_contents()) == {known.holders["billing"]}
    tab.go(f"/held?wait=1&client={known.holders['steps']}")
    assert rows.count() == len(known.held["steps"])
    (row,) = tab.rows("Messages").values()
    assert row["Message group"] == known.blocked
    tab.is_clean()


def test_the_overview_adds_up_what_the_client_knows(tab: Watched, populated: Populated) -> None:
    known = populated.known
    wanted = {
        "In flight": str(sum(map(len, known.held.values()))),
        "Delayed": str(known.delayed),
        "Dead letters": str(sum(known.dead.values())),
        "Topics": str(len(TYPES)),
        "Groups": str(len(GROUPS)),
    }

    def look() -> dict[str, str]:
        tab.go("/?wait=1")
        return {name: value for name, value in tab.figures().items() if name in wanted}

    until_equal(tab, look, wanted)


def test_timers_are_all_there_and_fall_into_their_times(tab: Watched, populated: Populated) -> None:
    tab.go("/timers?wait=1")
    assert tab.figures()["Delayed"] == str(populated.known.delayed)
    counts = tab.page.locator("section[aria-labelledby=due] tbody td.n").all_text_contents()
    assert sum(int(count) for count in counts) == populated.known.delayed


def test_clients_are_those_that_hold_something(tab: Watched, populated: Populated) -> None:
    holders = populated.known.holders
    for group in ("billing", "steps"):
        tab.go(f"/clients?wait=1&group={group}")
        assert tab.page.get_by_role("link", name=holders[group]).count() == 1, f"{group} has no client {holders[group]}"
        tab.go(f"/clients/{holders[group]}?wait=1")
        text = tab.page.locator("#live").inner_text().lower()
        assert "python" in text and group in text


def test_a_message_reports_its_life(tab: Watched, populated: Populated) -> None:
    known = populated.known
    tab.go(f"/messages/Orders/{known.held['billing'][0]}?wait=1")
    life = tab.page.locator("ol.events").inner_text()
    assert "billing" in life and known.holders["billing"] in life
    standing = tab.rows("How it stands")["billing"]
    assert standing["State"].lower().startswith("in flight"), standing
    tab.go(f"/messages/Orders/{known.acked}?wait=1")
    assert "in flight" not in tab.rows("How it stands")["billing"]["State"].lower()
