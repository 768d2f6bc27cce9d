"""Settings whose extra is not installed: a sentence that names it, before anything is written."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from popwheel_cli.main import main; main()"
GRPCIO = ("grpc", "--set", "proxy.transport=grpcio")
REDIS = ("redis", "--set", "proxy.redis_url=redis://127.0.0.1")
KUBERNETES = ("kubernetes", "--set", "controller.store.kind=kubernetes")


@pytest.mark.parametrize(
    ("verb", "settings", "sentence"),
    [
        (["standalone"], GRPCIO, "proxy.transport: must be popwheel"),
        (["standalone", "--workers", "2"], GRPCIO, "proxy.transport: must be popwheel"),
        (["cluster"], REDIS, "proxy.redis_url: must be empty"),
        (["proxy"], REDIS, "proxy.redis_url: must be empty"),
        (["proxy", "--workers", "2"], GRPCIO, "proxy.transport: must be popwheel"),
        (["controller"], KUBERNETES, "controller.store.kind: must be file"),
    ],
)
def test_a_setting_that_needs_a_missing_extra_is_refused(
    verb: list[str], settings: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    library, *words = settings
    folder = [] if verb[0] == "proxy" else ["--data-dir", str(tmp_path / "data")]
    done = run_without(library, [*verb, *folder, *words])
    extra = {"grpc": "grpcio"}.get(library, library)
    assert done.stderr == f'popwheel: {sentence}, because the extra is missing: pip install "popwheel[{extra}]"\n'
    assert done.returncode == 2
    if verb[0] != "controller":  # it takes its folder first, as another one may be using it
        assert list(tmp_path.iterdir()) == []


def test_certificates_name_their_extra() -> None:
    done = run_without("kubernetes", ["certificates", "--secret", "any", "--name", "*.svc"])
    why = 'no Kubernetes cluster can be asked here: the extra is missing: pip install "popwheel[kubernetes]"'
    assert (done.returncode, done.stderr) == (2, f"popwheel: {why}\n")


def run_without(library: str, words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run `popwheel` as where a library is not installed."""
    command = [sys.executable, "-c", WITHOUT, library, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
