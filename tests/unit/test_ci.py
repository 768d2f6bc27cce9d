"""Where `.ci/on-kubernetes` gets its cluster from: with a test bed and a `make` that only note what they are asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.source import ROOT

NOTES = '#!/bin/sh\necho "$(basename "$0") $*" >> "$NOTED"\n'
BED = NOTES + 'case "$1" in env) echo "export KUBECONFIG=/bed/config" ;; start) exit "${STARTS:-0}" ;; esac\n'
MAKE = '#!/bin/sh\necho "make $* at $KUBECONFIG" >> "$NOTED"\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder `checkout` with the script, and programs that note."""
    folder = tmp_path / "checkout"
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "on-kubernetes", folder / ".ci")
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "make", MAKE)
    return folder


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def run(checkout: Path, **variables: str) -> tuple[int, str, list[str]]:
    """(exit code, what it said, what was asked of the bed and of make)."""
    noted = checkout.parent / "noted"
    kept = {name: value for name, value in os.environ.items() if name not in ("TEST_BED", "KUBECONFIG")}
    ended = subprocess.run(
        [str(checkout / ".ci" / "on-kubernetes")],
        env={**kept, "PATH": f"{checkout.parent / 'bin'}:{os.environ['PATH']}", "NOTED": str(noted), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stderr, noted.read_text().splitlines() if noted.exists() else []


def test_a_bed_that_is_named_runs_the_end_to_end_tests_and_is_purged(checkout: Path, tmp_path: Path) -> None:
    program(tmp_path / "elsewhere" / "kube", BED)
    code, said, asked = run(checkout, TEST_BED=str(tmp_path / "elsewhere"))
    assert (code, said) == (0, "")
    tests = "make e2e IMAGE=localhost/popwheel:ci"
    assert asked == [
        "kube install",
        "kube image",
        "kube start --nodes 3",
        "kube env",
        f"make image KUBE={tmp_path / 'elsewhere' / 'kube'} IMAGE=localhost/popwheel:ci at /bed/config",
        f"{tests} at /bed/config",
        f"{tests} VALUES=--set tls.internal.enabled=true at /bed/config",
        "kube purge",
    ]


def test_a_bed_that_is_named_must_be_there_and_must_start(checkout: Path, tmp_path: Path) -> None:
    code, said, asked = run(checkout, TEST_BED="nowhere")
    assert (code, asked) == (1, [])
    assert "nowhere has no program kube" in said
    program(tmp_path / "elsewhere" / "kube", BED)
    code, said, asked = run(checkout, TEST_BED=str(tmp_path / "elsewhere"), STARTS="1")
    assert code == 1
    assert "did not start" in said
    assert asked[-1] == "kube purge"


def test_the_default_is_a_folder_beside_the_checkout_that_may_be_missing(checkout: Path, tmp_path: Path) -> None:
    code, said, asked = run(checkout)
    assert (code, asked) == (0, [])
    assert "../shared/kube has no program kube: nothing is tested on a real Kubernetes" in said
    program(tmp_path / "shared" / "kube" / "kube", BED)
    code, said, asked = run(checkout)
    assert code == 0
    if os.getuid():
        assert "needs root" in said
    else:
        assert asked[-1] == "kube purge"


def test_an_empty_name_leaves_kubernetes_out(checkout: Path) -> None:
    code, said, asked = run(checkout, TEST_BED="")
    assert (code, asked) == (0, [])
    assert "TEST_BED is empty" in said


def test_ci_asks_for_it() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "\n.ci/on-kubernetes\n" in script
    assert "../shared" not in script
