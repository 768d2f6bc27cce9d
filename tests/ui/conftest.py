"""A browser, a cluster that has something to show, and tabs."""

import importlib.util
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.harness.tools import missing
from tests.ui.populated import Populated, populated_cluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.ui.watched import Watched

CHROMIUM = "chromium"


# Not for the whole session: while Playwright runs, it has an event loop of its own, and other tests could have none.
@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    """Chromium of this machine."""
    if importlib.util.find_spec("playwright") is None:
        missing("Playwright", "make setup")
    program = shutil.which(CHROMIUM)
    if program is None:
        missing("Chromium", "apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox needs a user that is not root; pages are our own.
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def populated(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Populated]:
    """A cluster that the official client has filled. Tests change nothing in it that another one looks at."""
    with populated_cluster(tmp_path_factory.mktemp("populated")) as filled:
        yield filled


@pytest.fixture
def tab(browser: "Browser", populated: Populated) -> Iterator["Watched"]:
    """A tab that is watched."""
    from tests.ui.watched import watched

    with watched(browser, populated.url, viewport={"width": 1280, "height": 900}) as opened:
        yield opened
