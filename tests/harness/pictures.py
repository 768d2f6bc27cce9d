"""Draws all dashboards from what a Prometheus saw of a cluster under load that lost its master (`make pictures`)."""

import asyncio
import tempfile
from pathlib import Path

from tests.harness.dashboards_and_alerts import DASHBOARDS, of_all
from tests.harness.standalone import ROOT
from tests.harness.watched_cluster import WatchedCluster
from tools.dashboards.picture import Past, Series, draw

FOLDER = ROOT / "docs" / "pictures"
FLOW, FLOWS = 50, 60
STEP_S = 1
WINDOW = "10s"


def main() -> None:
    """Make the pictures; it takes a few minutes."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, WatchedCluster(Path(folder)) as watched:
        asyncio.run(watched.live(FLOW, FLOWS))
        times = watched.times

        def ask(expression: str) -> Series:
            return watched.prometheus.series(of_all(expression, WINDOW), times.quiet, times.over, STEP_S)

        for board in DASHBOARDS:
            path = FOLDER / f"{board.stem}.png"
            draw(board, path, Past(ask, times.quiet, times.over, STEP_S))
            print(path)


if __name__ == "__main__":
    main()
