"""Python programs run in processes of their own, such as those that use the official client."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.harness.preloaded import PROGRAM, PreloadedProcess, can_fork
from tests.harness.standalone import ROOT


@dataclass(frozen=True)
class Outcome:
    """How a program ended and what it said.

    Args:
        exit_code: 0 if all went well.
        output: its standard output.
        errors: its standard error.
        client_log: what the official client wrote into its log file, if it was used.
    """

    exit_code: int
    output: str
    errors: str
    client_log: str

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its standard output, read as one JSON object per line."""
        return [json.loads(line) for line in self.output.splitlines()]

    def of(self, event: str) -> list[dict[str, Any]]:
        """Those of its events that bear this name."""
        return [each for each in self.events if each["event"] == event]

    def explain(self) -> str:
        """All of it as text, for the message of a failed assertion."""
        return (
            f"exit code {self.exit_code}\n--- output\n{self.output}\n--- errors\n{self.errors}\n"
            f"--- end of the client's log\n{self.client_log[-3000:]}"
        )


def run_program(
    arguments: Sequence[str], scratch: Path, *, timeout_s: float = 90.0, environment: Mapping[str, str] | None = None
) -> Outcome:
    """Run `python <arguments>` at the top of the repository.

    Args:
        arguments: words after `python`, such as `["-m", "demo.client", "127.0.0.1:8081"]`.
        scratch: a folder of its own, taken for its home, where the official client writes its log.
        timeout_s: seconds after which it is killed, which counts as exit code -9.
        environment: variables that it gets on top of this process's own.
    """
    return run_words(
        [sys.executable, *arguments],
        scratch,
        log="logs/rocketmq_python/rocketmq_client.log",
        environment={**os.environ, **(environment or {}), "HOME": str(scratch)},
        timeout_s=timeout_s,
    )


def run_words(
    words: Sequence[str], scratch: Path, *, log: str, environment: Mapping[str, str], timeout_s: float
) -> Outcome:
    """Run a command at the top of the repository; arguments as of `run_program`.

    Args:
        log: the client's log, below `scratch`; empty if there is none.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / "output").open("w+b") as output, (scratch / "errors").open("w+b") as errors:
        code = _run(words, environment, output, errors, timeout_s)
        output.seek(0)
        errors.seek(0)
        said = scratch / log
        return Outcome(code, output.read().decode(), errors.read().decode(), said.read_text() if said.is_file() else "")


def run_popwheel(words: Sequence[str], *, timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
    """Run `popwheel` as `subprocess.run` would, forked where that can be (`tests/harness/preloaded.py`).

    Args:
        words: what follows `popwheel`.
        timeout_s: seconds after which it is killed, which counts as exit code -9.
    """
    command = [*PROGRAM, *words]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = _run(command, os.environ, output, errors, timeout_s)
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read().decode(), errors.read().decode())


def start_words(
    words: Sequence[str], environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
) -> "PreloadedProcess | subprocess.Popen[bytes]":
    """Start a command at the top of the repository; `popwheel` is forked where that can be."""
    if tuple(words[: len(PROGRAM)]) == PROGRAM and can_fork(environment):
        return PreloadedProcess(words[len(PROGRAM) :], environment, output, errors)
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)


def _run(
    words: Sequence[str], environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes], timeout_s: float
) -> int:
    process = start_words(words, environment, output, errors)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
