"""Record docs/pictures/at-work.svg: the command line at work with a server of this machine (run by `make picture`)."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.harness.standalone import ROOT, StandaloneProcess

FILE = ROOT / "docs" / "pictures" / "at-work.svg"
_WIDTH = 132
_STEPS = (
    'message send Greetings "hello, world" --tag morning --key order-7',
    'message send Greetings "and again" --delay 1h -o name',
    "message receive Greetings --group readers --no-ack",
    "inflight --topic Greetings",
    "timer stats",
    "progress readers",
)


def main() -> int:
    """Run the steps and write the picture; the exit code."""
    console = Console(record=True, width=_WIDTH, force_terminal=True, file=None)
    with (
        tempfile.TemporaryDirectory(prefix="popwheel-picture-") as folder,
        StandaloneProcess(Path(folder) / "data") as server,
    ):
        environment = {
            **os.environ,
            "POPWHEEL_SERVER": server.http_url,
            "XDG_CONFIG_HOME": folder,
            "COLUMNS": str(_WIDTH),
        }
        for step in _STEPS:
            console.print(Text.assemble(("$ ", "green"), (f"popwheel {step}", "bold")))
            words = f"{sys.executable} -m popwheel_cli.main {step}"
            done = subprocess.run(words, shell=True, env=environment, capture_output=True, text=True, check=False)
            console.print(Text(done.stdout + done.stderr))
            if done.returncode:
                return 1
    FILE.write_text(console.export_svg(title="popwheel", unique_id="at-work"), encoding="utf-8")
    console.print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
