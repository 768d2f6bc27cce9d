"""Spark's own cluster on this machine: a master and two workers, from PySpark's package."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import google.protobuf
import numpy
import pyarrow
import pyspark

from tests.harness.ports import free_ports
from tests.harness.standalone import ProcessFailedError

WORKERS = 2
_HOME = Path(pyspark.__path__[0])
_CLASS, _SUBMIT = (str(_HOME / "bin" / name) for name in ("spark-class", "spark-submit"))
_MEMORY = "512m"
"""Of an executor: Spark refuses less than 450 MiB."""
_START_S_MAX = 120.0
_STOP_S_MAX = 30.0
_POLL_S = 0.1
_ALONE = {"SPARK_HOME": str(_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}


def bare_python(folder: Path) -> Path:
    """A Python that has protobuf, PyArrow and NumPy, and nothing else; as workers may have it.

    Args:
        folder: is made, for it.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    arrays = Path(numpy.__path__[0])
    libraries = arrays.with_name("numpy.libs")
    for package in (Path(google.protobuf.__path__[0]).parent, Path(pyarrow.__path__[0]), arrays, libraries):
        (packages / package.name).symlink_to(package)
    return folder / "bin" / "python"


class SparkCluster:
    """One master and two workers of one core each. Use as a context manager.

    Args:
        folder: for their logs and what they run.
        python: of the workers, and of what plans for them.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._python = python
        self._port, self._http_port = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """`spark://HOST:PORT` of the master."""
        return f"spark://127.0.0.1:{self._port}"

    def executors(self) -> list[set[str]]:
        """By worker, the applications that it has run an executor of."""
        return [{path.name for path in self._work(number).glob("app-*")} for number in range(WORKERS)]

    def submit(self, package: Path, file: Path, *words: str) -> str:
        """Run a script by spark-submit; what it has printed.

        Args:
            package: goes along to the workers.
            file: the script.
            words: of its command line.

        Raises:
            ProcessFailedError: it failed.
        """
        command, environment = self._command(package, file, words)
        ended = subprocess.run(command, env=environment, cwd=self._folder, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ProcessFailedError(f"{file.name} ended with {ended.returncode}:\n{ended.stderr[-6000:]}")
        return ended.stdout

    def begin(self, log: Path, package: Path, file: Path, *words: str) -> subprocess.Popen[bytes]:
        """Begin a script by spark-submit. All its processes here are of one session, so that they can be killed.

        Args:
            log: gets what they say, behind what it has.
            package, file, words: as of `submit`.
        """
        command, environment = self._command(package, file, words)
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command(self, package: Path, file: Path, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """The command line of spark-submit, and its environment."""
        settings = {
            "spark.executor.memory": _MEMORY,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        command = [
            *(_SUBMIT, "--master", self.url),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            *("--py-files", str(package), str(file), *words),
        ]
        pythons = {"PYSPARK_PYTHON": str(self._python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        # What plans streams, on this machine, does not look at --py-files.
        return command, os.environ | _ALONE | pythons | {"PYTHONPATH": str(package)}

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors as kill -9 does, and start another one in its place."""
        worker = self._workers[number]
        executors = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        for pid in (worker.pid, *map(int, executors)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        worker.wait()
        self._processes.remove(worker)
        self._start_worker(number)

    def kill_master(self) -> None:
        """End the master as kill -9 does, and start another one, which finds workers and applications in its files."""
        master = self._processes.pop(0)
        master.kill()
        master.wait()
        self._start_master()

    def __enter__(self) -> Self:
        try:
            self._start_master()
            for number in range(WORKERS):
                self._start_worker(number)
            self._wait_for_workers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _work(self, number: int) -> Path:
        return self._folder / f"work-{number}"

    def _start_master(self) -> None:
        recovery = {"recoveryMode": "FILESYSTEM", "recoveryDirectory": self._folder / "recovery"}
        options = " ".join(f"-Dspark.deploy.{name}={value}" for name, value in recovery.items())
        ports = ("--port", str(self._port), "--webui-port", str(self._http_port))
        master = self._start("master", "master.Master", *ports, SPARK_DAEMON_JAVA_OPTS=options)
        self._processes.remove(master)
        self._processes.insert(0, master)

    def _start_worker(self, number: int) -> None:
        size = ("--cores", "1", "--memory", _MEMORY, "--work-dir", str(self._work(number)))
        self._workers[number] = self._start(f"worker-{number}", "worker.Worker", *size, "--webui-port", "0", self.url)

    def _start(self, name: str, kind: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*(_CLASS, f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"), *words],
                cwd=self._folder,
                env=os.environ | _ALONE | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def _wait_for_workers(self) -> None:
        until = time.monotonic() + _START_S_MAX
        while self._state().get("aliveworkers") != WORKERS:
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > until:
                logs = "\n".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))
                raise ProcessFailedError(f"Spark's cluster did not start:\n{logs}")
            time.sleep(_POLL_S)

    def _state(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/json/", timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return {}

    def _stop(self) -> None:
        for process in reversed(self._processes):  # workers end their executors
            process.terminate()
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
