"""Something dies while a page is open: the page says so, keeps what it showed, and mends itself."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize

from tests.harness.cluster import ClusterCommand
from tests.ui.populated import Populated, ask, consoles, populated_cluster
from tests.ui.watched import Watched, watched

LONG = pytest.mark.skipif(os.environ.get("UI") != "all", reason="takes minutes: make ui")
MENDED_S = 40
STATES = """() => [...document.querySelectorAll("section[aria-labelledby=processes] tbody tr")].map(
    row => [row.cells[0], row.cells[1]].map(cell => cell.textContent.trim()).join(" "))"""
WORDS = ("--controllers", "2")
WIDE: ViewportSize = {"width": 1280, "height": 900}


def states(tab: Watched) -> list[str]:
    """The processes of the overview, each with its state."""
    reported: list[str] = tab.page.evaluate(STATES)
    return reported


def controller(cluster: ClusterCommand, url: str) -> int:
    """The process number of the controller whose HTTP side is at an address."""
    setting = f"controller.http_port={url.rpartition(':')[2]}".encode()
    (found,) = [pid for pid in cluster.pids()[1:] if setting in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return found


def mends(tab: Watched, processes: int) -> None:
    """Wait until the page is live again, and all processes are ready."""
    for _ in range(MENDED_S):
        tab.fresh()
        tab.page.wait_for_timeout(1000)
        ready = [state for state in states(tab) if "ready" in state and "not ready" not in state]
        if tab.page.locator("#away").is_hidden() and len(ready) == processes:
            return
    raise AssertionError(f"did not mend: {tab.page.locator('main').inner_text()}")


def test_the_server_of_the_page_dies(tab: Watched, populated: Populated) -> None:
    assert populated.cluster is not None
    tab.go("/?wait=1")
    processes = len(states(tab))
    assert processes > 0
    os.kill(controller(populated.cluster, populated.url), signal.SIGKILL)
    tab.fresh()
    tab.page.locator("#away").wait_for(state="visible")
    assert "Not reachable" in tab.page.locator("#away").inner_text()
    assert len(states(tab)) == processes, "the page forgot what it showed"
    mends(tab, processes)
    assert "live" in tab.page.locator("#pulse-words").inner_text()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Populated]:
    """A cluster with two controllers, for what the shared one would not forget: who holds what before a failover."""
    with populated_cluster(tmp_path_factory.mktemp("several"), *WORDS) as filled:
        yield filled


@LONG
@pytest.mark.parametrize(("name", "role"), [("broker-0", "master"), ("broker-1", "slave"), ("proxy-1", "")])
def test_a_process_dies(browser: Browser, several: Populated, name: str, role: str) -> None:
    processes = ask(several.url, "/cluster/status")["processes"]
    (pid,) = [each["pid"] for each in processes if (each["name"], each["role"]) == (name, role)]
    with watched(browser, several.url, viewport=WIDE) as tab:
        tab.go("/?wait=1")
        before = states(tab)
        os.kill(pid, signal.SIGKILL)
        for _ in range(60):
            tab.fresh()
            tab.page.wait_for_timeout(200)
            if states(tab) != before:
                break
        else:
            raise AssertionError(f"the page never said that {name} was away")
        mends(tab, len(before))


@LONG
def test_a_drill_kills_a_master_and_the_page_reports_the_film(browser: Browser, several: Populated) -> None:
    (before,) = [each for each in ask(several.url, "/brokers")["groups"] if each["name"] == "broker-1"]
    with watched(browser, several.url, viewport=WIDE) as tab:
        tab.go("/replicas?wait=1&at=broker-1&do=drill")
        form = tab.page.locator("form[action$='/drill']")
        form.locator("[name=typed]").fill("broker-1")
        with tab.page.expect_navigation():
            form.locator("[data-sends]").click()
        assert f"Replica {before['master']} of broker-1 was killed" in tab.page.locator(".notice").inner_text()
        for words in (f"is master, in epoch {before['epoch'] + 1}", f"replica {before['master']} is in sync"):
            for _ in range(MENDED_S):
                tab.fresh()
                tab.page.wait_for_timeout(500)
                if words in tab.page.locator("section[aria-labelledby=history]").inner_text():
                    break
            else:
                raise AssertionError(f"never said: {words}: {tab.page.locator('main').inner_text()}")


@LONG
def test_a_replica_is_made_master(browser: Browser, several: Populated) -> None:
    def master() -> int | None:
        groups = ask(several.url, "/brokers")["groups"]
        return next((each["master"] for each in groups if each["name"] == "broker-0"), None)

    before = master()
    with watched(browser, several.url, viewport=WIDE) as tab:
        tab.go("/replicas?wait=1&at=broker-0")
        button = tab.page.get_by_role("button", name="Make master")
        button.wait_for()
        with tab.page.expect_navigation():
            button.click()
        assert "is master of broker-0 now" in tab.page.locator(".notice").inner_text()
        assert master() not in (before, None)
        tab.is_clean()


@LONG
def test_the_leading_controller_dies_while_another_one_shows_the_page(browser: Browser, several: Populated) -> None:
    assert several.cluster is not None
    (other,) = set(consoles(several.cluster)) - {several.url}
    with watched(browser, other, viewport=WIDE) as tab:
        tab.go("/?wait=1")
        processes = len(states(tab))
        assert processes == 6, tab.page.locator("main").inner_text()
        os.kill(controller(several.cluster, several.url), signal.SIGKILL)
        mends(tab, processes)
        tab.go("/held?wait=1&group=billing")
        held = tab.page.locator("section[aria-labelledby=list] tbody tr").count()
        assert held == len(several.known.held["billing"])
