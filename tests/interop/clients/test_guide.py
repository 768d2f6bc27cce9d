"""The Go of docs/use/clients.md compiles with the official client. Run by `make interop`."""

import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.harness.standalone import ROOT
from tests.interop.clients.conftest import WANTED
from tests.interop.clients.languages import SOURCES

pytestmark = pytest.mark.timeout(600)

PROGRAM = """package main

import (
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

func main() {{
	config := &rmq.Config{{Endpoint: "127.0.0.1:8081", Credentials: &credentials.SessionCredentials{{}}}}
{example}
	_, _ = producer, err
}}
"""


def test_keepalive_in_go_compiles(tmp_path: Path) -> None:
    if "go" not in WANTED:
        pytest.skip("LANGUAGES leaves Go out")
    if shutil.which("go") is None:
        pytest.skip("Go is missing on this machine")
    page = (ROOT / "docs/use/clients.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^  ```go\n(.*?)^  ```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "main.go").write_text(PROGRAM.format(example=textwrap.dedent(example)), encoding="utf-8")
    shutil.copy(SOURCES / "go" / "go.mod", tmp_path)
    for words in (("go", "mod", "tidy"), ("go", "build", "-buildvcs=false", "-o", "example", ".")):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
