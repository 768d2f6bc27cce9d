"""Pictures of the console for README and docs/operate/monitor.md, in light and dark, of a standalone server at work.

python -m tests.ui.pictures [--seconds 90]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import expect, sync_playwright

from popwheel_console.view.links import link
from tests.harness.standalone import ROOT, StandaloneProcess
from tests.ui.known import Known
from tests.ui.populated import SETTINGS, filled
from tests.ui.watched import watched

FOLDER: Final = ROOT / "docs" / "pictures"
SCHEMES: Final = ("light", "dark")
SIZE: Final = {"width": 1280, "height": 800}


def pictures(known: Known) -> dict[str, str]:
    """Name of a picture -> what is on it."""
    return {
        "overview": "/",
        "held": link("held", group="billing"),
        "message": link("messages", "Orders", known.acked),
    }


@contextmanager
def traffic(endpoint: str, folder: Path) -> Iterator[None]:
    """Have the official client send, receive and acknowledge."""
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.cluster_client", endpoint, "worker"],
        cwd=ROOT,
        env={**os.environ, "HOME": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert client.stdin is not None
    try:
        yield
    finally:
        client.stdin.close()
        client.wait(30)


def draw(url: str, known: Known) -> None:
    """Take all pictures."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("Chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for scheme in SCHEMES:
            with watched(browser, url, viewport=SIZE, color_scheme=scheme) as tab:
                for name, address in pictures(known).items():
                    tab.go(address)
                    expect(tab.page.locator("#live .skeleton")).to_have_count(0, timeout=30_000)
                    file = FOLDER / f"console-{name}-{scheme}.png"
                    tab.page.screenshot(path=file)
                    print(file)
        browser.close()


def main() -> None:
    """Fill a server, let it work for a while, and draw."""
    parser = argparse.ArgumentParser(prog="python -m tests.ui.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="of traffic before, for the lines of the last hour")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with (
            StandaloneProcess(folder / "data", SETTINGS) as server,
            filled(server.http_url, server.grpc_address, folder, is_plain=True) as known,
            traffic(server.grpc_address, folder),
        ):
            threading.Event().wait(options.seconds)
            draw(server.http_url, known)


if __name__ == "__main__":
    main()
