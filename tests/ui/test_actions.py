"""What a form does is done: the API and the client see it."""

from urllib.parse import urlsplit

from tests.ui.populated import Populated, ask
from tests.ui.watched import Watched


def names(populated: Populated) -> list[str]:
    """All topics."""
    return [each["name"] for each in ask(populated.url, "/topics?limit=100")["topics"]]


def test_a_topic_is_made_and_goes_when_its_name_is_typed(tab: Watched, populated: Populated) -> None:
    tab.go("/topics")
    form = tab.page.locator("form[action='/topics'][method=post]")
    form.locator("[name=name]").fill("MadeHere")
    form.locator("[name=type]").select_option("FIFO")
    form.get_by_role("button").click()
    tab.page.wait_for_url("**/topics/MadeHere*")
    assert "MadeHere" in tab.page.locator(".notice").inner_text()
    assert "MadeHere" in names(populated)
    tab.go("/topics/MadeHere?do=delete")
    form = tab.page.locator("form[action$='/delete']")
    form.locator("[name=typed]").fill("MadeHere")
    form.get_by_role("button").last.click()
    tab.page.wait_for_url(lambda address: urlsplit(address).path == "/topics")
    assert "MadeHere" in tab.page.locator(".notice").inner_text()
    assert "MadeHere" not in names(populated)
    tab.is_clean()
