"""A Prometheus of this machine that scrapes processes once a second."""

import json
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from tests.harness.dashboards_and_alerts import RULES, program
from tests.harness.ports import free_ports

_START_S_MAX = 30.0
_POLL_S = 0.05
_STEP_S = 1


class Prometheus:
    """It scrapes, and judges the chart's rules. Use as a context manager; skips the test where there is no Prometheus.

    Args:
        folder: for its data and its log.
        targets: base URLs of processes, by their names.
    """

    def __init__(self, folder: Path, targets: Mapping[str, str]) -> None:
        self._program = program("prometheus")
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        scraped = [
            {"targets": [url.removeprefix("http://")], "labels": {"instance": name}} for name, url in targets.items()
        ]
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "popwheel", "static_configs": scraped}],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self._process: subprocess.Popen[bytes] | None = None

    def series(self, expression: str, begin_s: float, end_s: float, step_s: int = _STEP_S) -> list[dict[str, Any]]:
        """What a query gives from time to time: series with their `metric` and `values`.

        Args:
            expression: in Prometheus' language.
            begin_s, end_s: seconds since 1970.
            step_s: between two values.
        """
        words = {"query": expression, "start": begin_s, "end": end_s, "step": step_s}
        return list(self._ask("query_range", words)["result"])

    def has(self, expression: str) -> bool:
        """Whether a query gives anything now."""
        return bool(self._ask("query", {"query": expression})["result"])

    def has_judged_since(self, moment_s: float) -> bool:
        """Whether every rule has been judged by what was scraped until then.

        Args:
            moment_s: seconds since 1970.
        """
        groups = self._ask("rules", {})["groups"]
        return all(datetime.fromisoformat(group["lastEvaluation"]).timestamp() > moment_s for group in groups)

    def _ask(self, call: str, words: Mapping[str, object]) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/api/v1/{call}?{urllib.parse.urlencode(words)}", timeout=10) as answer:
            return dict(json.load(answer)["data"])

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self._program,
                    f"--config.file={self._folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={self._folder / 'series'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + _START_S_MAX
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__(None, None, None)
                raise AssertionError(f"did not start:\n{(self._folder / 'prometheus.log').read_text()}")
            time.sleep(_POLL_S)
        return self

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
