"""The committed protocol code is what `make proto` makes of the committed .proto files."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness.tools import missing


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }


def test_committed_code_is_what_make_proto_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec("grpc_tools") is None:
        missing("grpcio-tools", "pip install -e '.[dev]'")
    from tools import generate_proto

    scripts = Path(sys.prefix) / "bin"
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    generated = tmp_path / "pb"
    assert generate_proto.generate(generated) == 0
    assert contents(generated) == contents(generate_proto.TARGET), "run `make proto` and commit what it changes"
