"""Has a Prometheus watch a cluster that is well, for an hour, and says which of the chart's alerts it heard."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.harness.watched_cluster import WatchedCluster

_STEP_S = 15


def main() -> int:
    """Watch and report; 1 if an alert fired, as in a quiet hour none may."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.quiet_hour", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for how long")
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder, WatchedCluster(Path(folder)) as watched:
        asyncio.run(watched.rest(minutes * 60))
        times = watched.times
        learned = {
            state: sorted(
                {
                    each["metric"]["alertname"]
                    for each in watched.prometheus.series(
                        f'ALERTS{{alertstate="{state}"}}', times.quiet, times.over, _STEP_S
                    )
                }
            )
            for state in ("pending", "firing")
        }
    print(
        f"{minutes:g} minutes: fired {learned['firing'] or 'none'}; pending for a while {learned['pending'] or 'none'}"
    )
    return 1 if learned["firing"] else 0


if __name__ == "__main__":
    sys.exit(main())
