"""Other languages' official clients, and the table of what they did.

Nothing here runs unless it is asked for: `make interop` says INTEROP=1.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.certificates import CertificateVolume, certificate_by, new_authority
from tests.harness.programs import Outcome
from tests.harness.standalone import StandaloneProcess
from tests.interop.clients.access import write_users
from tests.interop.clients.languages import LANGUAGES, Language, LanguageMissingError
from tests.interop.clients.plan import Plan

ASKED_FOR = bool(os.environ.get("INTEROP"))
WANTED = os.environ.get("LANGUAGES", "").replace(",", " ").split() or list(LANGUAGES)
CASES = os.environ.get("CASES", "").replace(",", " ").split()

collect_ignore = [] if ASKED_FOR else ["test_clients.py", "test_guide.py"]

QUICK = (
    *("--set", "proxy.receive.invisible_ms_min=1000"),
    *("--set", "broker.transaction.first_check_ms=2000"),
    *("--set", "broker.transaction.check_interval_ms=2000"),
    *("--set", "proxy.grpc_client_consumer_min_long_polling_timeout_ms=0"),
    *("--set", "proxy.grpc_client_consumer_max_long_polling_timeout_ms=3000"),
)
"""Push consumers end when their polls do."""


def pytest_configure() -> None:
    """Say what cannot be wanted."""
    unknown = set(WANTED) - LANGUAGES.keys()
    if ASKED_FOR and unknown:
        raise pytest.UsageError(f"LANGUAGES: {', '.join(unknown)}: no such client; there are {', '.join(LANGUAGES)}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each case with each language that is wanted."""
    if "stage" in metafunc.fixturenames:
        groups = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in WANTED]
        metafunc.parametrize("stage", groups, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only the cases that are wanted."""
    if ASKED_FOR and CASES:
        items[:] = [each for each in items if case_of(each.nodeid) in CASES]


def case_of(node: str) -> str:
    """What the table calls a test: `test_fifo_push[go]` is `fifo-push`."""
    return node.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", "-")


class Stage:
    """A language's program, and the servers it meets.

    Args:
        language: of the program.
        server: takes plain text from everybody.
        guarded: has users and rules, and a certificate by a test authority.
        authority: the certificate of that authority.
        folder: for what the runs leave behind.
    """

    def __init__(
        self,
        language: Language,
        server: StandaloneProcess,
        guarded: StandaloneProcess,
        authority: Path,
        folder: Path,
    ) -> None:
        self.language = language
        self.server = server
        self.guarded = guarded
        self._authority = authority
        self._folder = folder
        self._runs = 0

    @property
    def best_consumer(self) -> str:
        """The push consumer, where the client has one."""
        return "push" if "push" in self.language.offers else "simple"

    def needs(self, *offers: str) -> None:
        """Skip what the client does not offer."""
        missing = [each for each in offers if each not in self.language.offers]
        if missing:
            pytest.skip(f"the client does not offer: {', '.join(missing)}")

    def plan(self, name: str) -> Plan:
        """A plan with a topic and a group of its own on the open server."""
        return Plan(
            self.server.grpc_address, f"Other-{self.language.name}-{name}", f"other-{self.language.name}-{name}"
        )

    def make(self, plan: Plan, kind: str = "NORMAL", **group: object) -> None:
        """Make the topic and the group of a plan."""
        for path, body in (("topics", {"name": plan.topic, "type": kind}), ("groups", {"name": plan.group, **group})):
            answer = httpx.post(f"{self.server.http_url}/api/v1/{path}", json=body)
            assert answer.status_code == 201, answer.text

    def play(self, plan: Plan, patience_s: float = 0.0) -> Outcome:
        """Run the program once."""
        self._runs += 1
        scratch = self._folder / f"{self.language.name}-{self._runs}"
        return self.language.play(plan, scratch, authority=self._authority, patience_s=patience_s)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StandaloneProcess, StandaloneProcess, Path]]:
    """The open one, the guarded one, and the authority of its certificate."""
    folder = tmp_path_factory.mktemp("servers")
    root = new_authority()
    volume = CertificateVolume(folder / "certificates")
    volume.hold(certificate_by(root), root)
    guard = (
        *("--set", f"access.file={write_users(folder / 'access.json')}"),
        *("--set", f"proxy.tls.certificate_file={volume.certificate}"),
        *("--set", f"proxy.tls.key_file={volume.key}"),
    )
    with (
        StandaloneProcess(folder / "data", QUICK) as server,
        StandaloneProcess(folder / "guarded-data", (*QUICK, *guard)) as guarded,
    ):
        yield server, guarded, volume.authority


@pytest.fixture(scope="session")
def stage(
    request: pytest.FixtureRequest,
    servers: tuple[StandaloneProcess, StandaloneProcess, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Stage:
    """The program of a language, built."""
    language = LANGUAGES[request.param]
    try:
        language.install()
    except LanguageMissingError as error:
        pytest.skip(str(error))
    return Stage(language, *servers, tmp_path_factory.mktemp(language.name))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show who did what."""
    results: dict[str, dict[str, str]] = {}
    for kind, word in (("passed", "yes"), ("skipped", "-"), ("failed", "NO"), ("error", "NO")):
        for report in terminalreporter.stats.get(kind, ()):
            if "[" in report.nodeid and "interop/clients" in report.nodeid:
                language = report.nodeid.rpartition("[")[2].rstrip("]").partition("@")[0]
                results.setdefault(case_of(report.nodeid), {})[language] = word
    if results:
        terminalreporter.section("what official clients of other languages did")
        heads = [f"{name} {LANGUAGES[name].version}" for name in WANTED]
        terminalreporter.write_line(f"{'case':<20}" + "".join(f"{head:<12}" for head in heads))
        for case, words in results.items():
            terminalreporter.write_line(f"{case:<20}" + "".join(f"{words.get(name, ''):<12}" for name in WANTED))
