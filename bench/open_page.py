"""Cost of an open page at its server: `python -m bench.open_page [SECONDS]` (docs/operate/monitor.md).

A program, not a test: CPU time of a standalone server with nothing open, and with a page that refreshes itself.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import httpx

from bench.process import cpu_s
from popwheel_console.catalog import PAGES
from popwheel_console.login.logins import LIVE_HEADER
from tests.harness.standalone import StandaloneProcess

NAMES: Final = 10
SECONDS: Final = 60
SAMPLED_S: Final = 12
"""Time after which the controller has asked its broker for numbers."""
OPEN: Final = ("", "/", "/held", "/replicas", "")


def main() -> None:
    """Print a line for each page."""
    seconds = int(sys.argv[1]) if sys.argv[1:] else SECONDS
    with (
        tempfile.TemporaryDirectory() as folder,
        StandaloneProcess(Path(folder) / "data", loads_itself=True) as server,
        httpx.Client(base_url=server.http_url) as http,
    ):
        for number in range(NAMES):
            for kind in ("topics", "groups"):
                http.post(f"/api/v1/{kind}", json={"name": f"some-{number}"}).raise_for_status()
        time.sleep(SAMPLED_S)
        for path in OPEN:
            every_s = next((page.refresh_s for page in PAGES if page.path == path), seconds)
            began_s, used_s = time.monotonic(), cpu_s([server.pid])
            while time.monotonic() < began_s + seconds:
                if path:
                    http.get(path, headers={LIVE_HEADER: "1"}).raise_for_status()
                time.sleep(every_s)
            share = (cpu_s([server.pid]) - used_s) / (time.monotonic() - began_s)
            print(f"{path or 'nothing'} open: {share:.2%} of a core")


if __name__ == "__main__":
    main()
