"""Run the public HTTP/2 conformance suite h2spec against standalone, plain and over TLS (`make h2spec`).

The suite is a Go program (github.com/summerwind/h2spec). It is built once into `build/h2spec`; that needs Go and the Go
module proxy. Nothing else here needs Go: without it this says so and ends with exit code 2, and `make test` does not
run it. The exit code is 0 only if every case of both runs passed, 1 if not.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.harness.standalone import StandaloneProcess

ROOT = Path(__file__).resolve().parent.parent
MODULE = "github.com/summerwind/h2spec/cmd/h2spec"
VERSION = "v2.2.1+incompatible"
FOLDER = ROOT / "build" / "h2spec"
PATH = "/apache.rocketmq.v2.MessagingService/QueryRoute"
"""A path that is served, as far as HTTP/2 goes: the suite sends GET, and is answered with 415."""

_CASE_TIMEOUT_S = 5
_BUILD_TIMEOUT_S = 600
_RUN_TIMEOUT_S = 900
_TLS = ("--tls", "--insecure")

_NO_GO = """\
Go is missing, and h2spec is a Go program. Install Go 1.20 or newer (https://go.dev/dl, on Debian: apt-get install
golang-go) and run `make h2spec` again. Popwheel itself, `make test` and `make run` do not need it."""


class SuiteMissingError(Exception):
    """The suite cannot be had here; the text says why."""


@dataclass(frozen=True)
class Result:
    """Result of one run of the suite.

    Args:
        title: which run.
        passed: cases that passed.
        unpassed: names of those that failed, broke off or were skipped.
    """

    title: str
    passed: int
    unpassed: list[str]

    def __str__(self) -> str:
        total = self.passed + len(self.unpassed)
        return f"{self.title:<12}{self.passed:5} of {total} passed, {len(self.unpassed)} not"


def suite() -> Path:
    """The program, built if it is not there.

    Raises:
        SuiteMissingError: there is no Go, or it cannot build it.
    """
    program = FOLDER / "h2spec"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        raise SuiteMissingError(_NO_GO)
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"building {MODULE}@{VERSION} into {FOLDER.relative_to(ROOT)}", flush=True)
    built = subprocess.run(
        [go, "install", f"{MODULE}@{VERSION}"],
        env={**os.environ, "GOBIN": str(FOLDER), "GOFLAGS": "-modcacherw"},
        timeout=_BUILD_TIMEOUT_S,
        check=False,
        capture_output=True,
        text=True,
    )
    if built.returncode or not program.exists():
        raise SuiteMissingError(f"go could not build {MODULE}@{VERSION}:\n{built.stderr.strip()}")
    return program


def run(title: str, program: Path, port: int, arguments: tuple[str, ...], report: Path) -> Result:
    """Run all cases, the strict ones too, and show those that did not pass."""
    ended = subprocess.run(
        [
            *(str(program), "--host", "127.0.0.1", "--port", str(port), "--strict", "--path", PATH),
            *("--timeout", str(_CASE_TIMEOUT_S), "--junit-report", str(report), *arguments),
        ],
        timeout=_RUN_TIMEOUT_S,
        check=False,
        capture_output=True,
        text=True,
    )
    result = (
        Result(title, *read_report(report.read_text(errors="replace"))) if report.exists() else Result(title, 0, [])
    )
    if ended.returncode or result.unpassed or not result.passed:
        print(ended.stdout[-20_000:], ended.stderr[-4_000:], sep="\n")
    if ended.returncode and not result.unpassed:
        return Result(title, result.passed, [f"h2spec itself, which ended with exit code {ended.returncode}"])
    return result


def read_report(text: str) -> tuple[int, list[str]]:
    """Return the number of passed cases of a JUnit report, and the names of all others.

    Args:
        text: the report; its own control characters, which XML does not allow, are passed over.
    """
    passed = 0
    unpassed = []
    for case in ElementTree.fromstring(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", text)).iter("testcase"):
        if any(case.find(fault) is not None for fault in ("failure", "error", "skipped")):
            unpassed.append(f"{case.get('package', '?')}: {case.get('classname', '?')}")
        else:
            passed += 1
    return passed, unpassed


def main() -> int:
    """Build, run twice, say how it went."""
    try:
        program = suite()
    except SuiteMissingError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with StandaloneProcess(folder / "data") as server:
            results = [
                run("plain text", program, server.grpc_port, (), folder / "plain.xml"),
                run("TLS", program, server.grpc_port, _TLS, folder / "tls.xml"),
            ]
    print(*results, sep="\n")
    for result in results:
        for name in result.unpassed:
            print(f"not passed over {result.title}: {name}")
    return 0 if all(result.passed and not result.unpassed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
