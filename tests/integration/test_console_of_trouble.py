"""Pages of the console of a real process: dead letters, retries, balance, settings, beside what its clients know."""

import re

import httpx

from tests.harness.client import MessagingClient
from tests.harness.standalone import StandaloneProcess
from tests.unit.console.read_page import ReadPage


class Browser:
    """A browser that keeps cookies and sends forms.

    Args:
        server: that it asks.
    """

    def __init__(self, server: StandaloneProcess) -> None:
        self._http = httpx.Client(base_url=server.http_url, headers={"accept": "text/html"}, follow_redirects=True)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def words(self, address: str) -> str:
        """The text of a page, which waits for all answers."""
        answer = self._http.get(f"{address}{'&' if '?' in address else '?'}wait=1")
        assert answer.status_code == 200, answer.text
        return ReadPage(answer.text).shown

    def send(self, address: str, form_of: str, **fields: str) -> str:
        """Send a form of a page; return the text of the page that follows."""
        page = ReadPage(self._http.get(form_of).text)
        hidden = {each.attributes["name"]: each.attributes for each in page.all("input")}
        csrf = hidden["csrf"]["value"]
        answer = self._http.post(address, data={"csrf": csrf, **fields})
        assert answer.status_code == 200, answer.text
        return ReadPage(answer.text).shown


async def test_dead_letters_come_again_by_the_console(server: StandaloneProcess, client: MessagingClient) -> None:
    group, topic = "failing", "Failed"
    for number in range(6):
        await client.send(topic, b"%d" % number)
    given = await client.receive_all(group, topic, 6, invisible_s=60.0)
    for message in given[:4]:
        await client.forward_to_dead_letters(group, topic, message)
    with Browser(server) as browser:
        at = f"/groups/{group}/dead-letters"
        assert "4 dead letters" in browser.words(at)
        assert "of 2 messages in flight" in browser.words(f"/groups/{group}/retries")
        said = browser.send(f"{at}/redrive", at, broker="broker-0", limit="3", end_offset="4")
        assert "3 dead letters of broker-0 will be redelivered." in said
        again = await client.receive_all(group, topic, 3, invisible_s=60.0)
        assert {each.body for each in again} < {each.body for each in given[:4]}
        said = browser.send(f"{at}/purge", at, typed=group)
        assert f"1 dead letter of {group} purged." in said

        await client.ack(group, topic, [*given[4:], *again[:1]])
        balance = browser.words(f"/balance?group={group}&topic={topic}")
        assert re.search(r"Stored 6 .*Done 4 .*In flight 2 .*Waiting 0 .*Dead 0 .*Difference: 0 ", balance)
        assert "proxy.receive.invisible_ms_min" in browser.words("/settings")
        assert f"{topic} at all brokers" in browser.words(f"/polls?group={group}")
        assert "The quarantine is empty." in browser.words("/trouble")
