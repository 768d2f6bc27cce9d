"""What a form does is done: the official client sees it."""

import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator

from tests.ui.action_server import ActionServer, action_server
from tests.ui.populated import ask
from tests.ui.watched import Watched, watched

LONG = pytest.mark.skipif(os.environ.get("UI") != "all", reason="takes minutes: make ui")


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ActionServer]:
    """A server that tests may change."""
    with action_server(tmp_path_factory.mktemp("action_server")) as found:
        yield found


@pytest.fixture
def tab(browser: Browser, server: ActionServer) -> Iterator[Watched]:
    """A tab that is watched, of that server."""
    with watched(browser, server.url, viewport={"width": 1280, "height": 900}, accept_downloads=True) as opened:
        yield opened
        opened.is_clean()


def made(server: ActionServer, topic: str = "", group: str = "", **facts: Any) -> None:
    """Make a topic or a group."""
    for path, name in (("/topics", topic), ("/groups", group)):
        if name:
            ask(server.url, path, {"name": name, **facts})


def post(tab: Watched, end: str) -> Locator:
    """The form that is sent to an address that ends so."""
    return tab.page.locator(f"form[method=post][action$='{end}']")


def done(tab: Watched) -> str:
    """The notice of the page that a form leads to."""
    notice = tab.page.locator(".notice")
    notice.wait_for()
    return notice.inner_text()


def delete(tab: Watched, address: str, name: str) -> str:
    """Type a name, delete it, and read the notice."""
    tab.go(f"{address}?do=delete")
    post(tab, "/delete").locator("[name=typed]").fill(name)
    post(tab, "/delete").locator("[data-sends]").click()
    tab.page.wait_for_url(lambda there: urlsplit(there).path != urlsplit(tab.url + address).path)
    return done(tab)


def test_a_topic_is_made_changed_and_goes_when_its_name_is_typed(tab: Watched, server: ActionServer) -> None:
    tab.go("/topics")
    form = tab.page.locator("form[action='/topics'][method=post]")
    form.locator("[name=name]").fill("MadeHere")
    form.locator("[name=type]").select_option("FIFO")
    form.get_by_role("button").click()
    tab.page.wait_for_url("**/topics/MadeHere*")
    assert "MadeHere" in done(tab)
    assert "message type" in server.client.refusal("send", topic="MadeHere", body="no message group").lower()
    tab.go("/topics/MadeHere?do=change")
    post(tab, "/change").locator("[name=type]").select_option("MIXED")
    post(tab, "/change").get_by_role("button").click()
    assert "type is MIXED, was FIFO" in done(tab)
    server.client.send("MadeHere", "of any kind", anew=True)
    assert "MadeHere" in delete(tab, "/topics/MadeHere", "MadeHere")
    assert "MadeHere" not in [each["name"] for each in ask(server.url, "/topics?limit=100")["topics"]]


def test_a_group_is_made_changed_and_deleted(tab: Watched, server: ActionServer) -> None:
    made(server, "ForGroups")
    server.client.send("ForGroups", "tried twice")
    tab.go("/groups")
    form = tab.page.locator("form[action='/groups'][method=post]")
    form.locator("[name=name]").fill("made-here")
    form.locator("[name=max_attempts]").fill("1")
    form.get_by_role("button").click()
    assert "made-here" in done(tab)
    tab.go("/groups/made-here?do=change")
    post(tab, "/change").locator("[name=max_attempts]").fill("2")
    post(tab, "/change").get_by_role("button").click()
    assert "max_attempts is 2, was 1" in done(tab)
    attempts = [server.client.take("made-here", "ForGroups", invisible_s=1)[0]["attempt"] for _ in range(2)]
    assert attempts == [1, 2]
    assert "made-here" in delete(tab, "/groups/made-here", "made-here")
    assert "made-here" not in [each["name"] for each in ask(server.url, "/groups?limit=100")["groups"]]


def test_a_message_is_sent_and_sent_again_edited(tab: Watched, server: ActionServer) -> None:
    made(server, "Sent", "sent")
    tab.go("/topics/Sent/send")
    form = post(tab, "/messages")
    for name, value in {"body": "<b>first</b>", "tag": "new", "keys": "a b", "properties": "by=hand"}.items():
        form.locator(f"[name={name}]").fill(value)
    form.locator("[data-sends]").click()
    message_id = done(tab).split()[2]
    (seen,) = server.client.take("sent", "Sent", ack=True)
    wanted = {"id": message_id, "body": "<b>first</b>", "tag": "new", "properties": {"by": "hand"}}
    assert {name: seen[name] for name in wanted} == wanted and sorted(seen["keys"]) == ["a", "b"]
    tab.page.get_by_role("link", name="Send again, edited").click()
    post(tab, "/messages").locator("[name=body]").fill("second")
    post(tab, "/messages").locator("[data-sends]").click()
    (again,) = server.client.take("sent", "Sent", ack=True)
    assert (again["body"], again["tag"], again["properties"]) == ("second", "new", {"by": "hand"})
    assert again["id"] == done(tab).split()[2] != message_id


def test_what_a_topic_holds_is_shown_and_what_comes_is_followed(tab: Watched, server: ActionServer) -> None:
    made(server, "Watched")
    ids = [server.client.send("Watched", f"body {number}", tag="odd" if number % 2 else "even") for number in range(6)]
    tab.go("/topics/Watched/messages?wait=1")
    titles = tab.page.locator("tbody th a").evaluate_all("all => all.map(each => each.title)")
    assert titles == ids[::-1]
    tab.page.locator("[name=tag]").fill("odd")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**tag=odd*")
    assert tab.page.locator("tbody tr").count() == 3
    tab.page.get_by_role("link", name="Follow").click()
    words = tab.page.locator("#tail-words")
    tab.page.locator("#tail-words", has_text="Following").wait_for()
    server.client.send("Watched", "not wanted", tag="even")
    wanted = server.client.send("Watched", "<script>alert(1)</script>", tag="odd")
    row = tab.page.locator("#tail-rows tr")
    row.wait_for()
    assert row.locator("a").get_attribute("title") == wanted
    assert row.locator("[data-slot=body]").inner_text() == "<script>alert(1)</script>"
    tab.page.locator("#tail-stop").click()
    assert words.inner_text() == "Stopped: 1 shown"


def test_an_in_flight_message_is_released(tab: Watched, server: ActionServer) -> None:
    made(server, "Held", "holding")
    message_id = server.client.send("Held", "held")
    (first,) = server.client.take("holding", "Held")
    assert (first["id"], first["attempt"]) == (message_id, 1)
    tab.go("/held?wait=1&group=holding")
    post(tab, "/held/release").get_by_role("button").click()
    done(tab)
    (second,) = server.client.take("holding", "Held", ack=True)
    assert (second["id"], second["attempt"]) == (message_id, 2)


@LONG
def test_a_delayed_message_is_recalled(tab: Watched, server: ActionServer) -> None:
    made(server, "Later", type="DELAY")
    made(server, group="later")
    due_s = int(time.time()) + 6
    ids = [server.client.send("Later", body, delivery_timestamp=due_s) for body in ("recalled", "delivered")]
    tab.go("/timers?wait=1&topic=Later")
    row = tab.page.locator("section[aria-labelledby=list] tbody tr", has=tab.page.locator(f"a[href*='{ids[0]}']"))
    row.get_by_role("button", name="Recall").click()
    done(tab)
    seen = server.client.take("later", "Later", 2, within_s=due_s + 2 - time.time(), ack=True)
    assert [each["id"] for each in seen] == ids[1:]


@LONG
@pytest.mark.parametrize("kind", ["groups", "topics"])
def test_a_pause_holds_back_and_a_resume_lets_go(tab: Watched, server: ActionServer, kind: str) -> None:
    topic, group = f"Paused-{kind}", f"paused-{kind}"
    made(server, topic, group)
    server.client.send(topic, "first")
    assert len(server.client.take(group, topic, ack=True)) == 1
    address = f"/{kind}/{topic if kind == 'topics' else group}"
    tab.go(address)
    post(tab, "/pause").get_by_role("button").click()
    assert "paused" in done(tab)
    message_id = server.client.send(topic, "second")
    assert server.client.take(group, topic, within_s=2.5) == []
    tab.go(address)
    post(tab, "/resume").get_by_role("button").click()
    done(tab)
    assert [each["id"] for each in server.client.take(group, topic, ack=True)] == [message_id]


@LONG
def test_a_group_that_is_set_back_reads_again(tab: Watched, server: ActionServer) -> None:
    made(server, "Back", "back")
    ids = {server.client.send("Back", f"{number}") for number in range(4)}
    assert {each["id"] for each in server.client.take("back", "Back", 4, ack=True)} == ids
    tab.go("/groups/back/reset")
    tab.page.locator("form[method=get] [name=topic]").fill("Back")
    tab.page.locator("select[name=to]").select_option("earliest")
    tab.page.get_by_role("button", name="Preview").click()
    tab.page.wait_for_url("**topic=Back*")
    post(tab, "/reset").locator("[name=force]").check()
    post(tab, "/reset").locator("[data-sends]").click()
    done(tab)
    assert {each["id"] for each in server.client.take("back", "Back", 4, ack=True)} == ids


@LONG
def test_dead_letters_are_chosen_exported_redriven_and_purged(tab: Watched, server: ActionServer) -> None:
    made(server, "Failing")
    made(server, group="failing", max_attempts=1)
    ids = [server.client.send("Failing", f"letter {number}") for number in range(5)]
    assert len(server.client.take("failing", "Failing", 5, invisible_s=1)) == 5
    until = time.monotonic() + 15
    while ask(server.url, "/groups/failing/dead-letters")["total"] < 5:
        assert time.monotonic() < until
        tab.page.wait_for_timeout(200)
    tab.go("/groups/failing/dead-letters?wait=1")
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="Export").click()
    lines = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert {line["body"] for line in lines[:-1]} == {f"letter {number}" for number in range(5)}

    tab.go("/groups/failing/dead-letters?wait=1")
    tab.page.get_by_label(f"Choose {ids[3]}").check()
    tab.page.get_by_role("button", name="Dry run").click()
    assert "1 dead letter would be redelivered" in done(tab)
    assert server.client.take("failing", "Failing", within_s=1.5) == []
    tab.page.get_by_label(f"Choose {ids[3]}").check()
    tab.page.get_by_role("button", name="Redrive the chosen").click()
    assert "1 dead letter will be redelivered" in done(tab)
    assert [each["id"] for each in server.client.take("failing", "Failing", ack=True)] == [ids[3]]

    form = post(tab, "/dead-letters/redrive")
    form.locator("[name=limit]").fill("2")
    form.locator("[name=rate]").fill("1")
    with tab.page.expect_navigation():
        form.get_by_role("button").click()
        tab.page.locator("progress").wait_for()
    assert "1 dead letter" in done(tab)
    back = {each["id"] for each in server.client.take("failing", "Failing", 2, ack=True)}
    assert len(back) == 2 and back < set(ids)

    tab.go("/groups/failing/dead-letters?do=purge&wait=1")
    post(tab, "/purge").locator("[name=typed]").fill("failing")
    post(tab, "/purge").locator("[data-sends]").click()
    assert "purged" in done(tab)
    assert server.client.take("failing", "Failing", within_s=1.5) == []
    assert ask(server.url, "/groups/failing/dead-letters")["total"] == 0
