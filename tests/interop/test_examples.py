"""Each program of examples/ runs against a server and prints what it is to print; each test of examples/ passes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from popwheel_testing import PopwheelServer
from tests.harness.programs import Outcome, run_program
from tests.harness.standalone import ROOT

pytest_plugins = ["popwheel_testing.plugin"]

PRINTED = {
    "send_and_receive": [f"received order {number} attempt 1" for number in (0, 2, 4)],
    "delayed_message": ["received tea is ready in time"],
    "credentials": ["received order 1"],
    "push_consumers": [f"delivered parcel {number}" for number in range(6)],
    "admin_api": [
        "again: 409 {'code': 'PRECONDITION_FAILED', 'message': 'topic Invoices is there already'}",
        "group printers with 3 attempts",
        "topic Invoices of 4 queues",
    ],
}
"""Name of a program -> its lines, sorted: messages of several queues come in any order."""

TESTS = {"test_orders": 2}
"""Name of a file of tests -> how many pass. They have a server of their own, by the same fixture."""


@pytest.fixture(scope="module")
def outcomes(popwheel: PopwheelServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """How each program went; they run side by side, as most of it is waiting."""
    folder = tmp_path_factory.mktemp("examples")
    with ThreadPoolExecutor(len(PRINTED)) as pool:
        running = {
            name: pool.submit(
                run_program,
                [f"examples/{name}.py", popwheel.http_url if name == "admin_api" else popwheel.endpoints],
                folder / name,
            )
            for name in PRINTED
        }
        return {name: future.result() for name, future in running.items()}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_to_print(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert outcome.exit_code == 0, outcome.explain()
    assert sorted(outcome.output.splitlines()) == PRINTED[name], outcome.explain()


@pytest.mark.parametrize("name", TESTS)
def test_tests_of_the_examples_pass(name: str, tmp_path: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"examples/{name}.py"]
    outcome = run_program(words, tmp_path)
    assert outcome.exit_code == 0, outcome.explain()
    assert f"{TESTS[name]} passed" in outcome.output, outcome.explain()


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("[!_]*.py")} == PRINTED.keys() | TESTS.keys()
