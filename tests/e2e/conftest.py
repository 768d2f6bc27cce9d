"""A release on the cluster that KUBECONFIG names, and the table of what its drills cost.

Nothing here runs unless it is asked for: `make e2e` and `make drill` say POPWHEEL_E2E=1.
"""

import os
from collections.abc import Iterator

import pytest

from tests.e2e.drill import Bill
from tests.harness.recorder import TOPICS
from tests.harness.release import Release

NAMESPACE = os.environ.get("NAMESPACE") or "popwheel-drill"
RELEASE = os.environ.get("RELEASE") or "drill"
"""Its own: a drain takes the pods of all namespaces that bear the label."""
IMAGE = os.environ.get("IMAGE") or "popwheel:0.1.0"
VALUES = os.environ.get("VALUES", "").split()
"""More words for Helm."""
KEEP = bool(os.environ.get("KEEP"))

_bills: list[Bill] = []


@pytest.fixture(scope="session")
def release() -> Iterator[Release]:
    """The release, whole; it is taken away at the end unless KEEP is given."""
    if not os.environ.get("POPWHEEL_E2E"):
        pytest.skip("needs a Kubernetes cluster: make e2e or make drill, with KUBECONFIG")
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a Kubernetes cluster: say which in KUBECONFIG")
    made = Release(NAMESPACE, RELEASE, IMAGE, words=VALUES)
    made.install()
    made.wait_until_whole()
    for topic in TOPICS:
        made.make_topic(*topic)
    yield made
    if not KEEP:
        made.uninstall()
        made.remove_namespace()


@pytest.fixture
def bills() -> list[Bill]:
    """What the drills of this run cost."""
    return _bills


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show that."""
    if _bills:
        terminalreporter.section("what the drills cost")
        terminalreporter.write_line(Bill.HEAD)
        for bill in _bills:
            terminalreporter.write_line(str(bill))
