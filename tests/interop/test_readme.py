"""What the README and `make demo` show is true."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.harness.programs import run_program
from tests.harness.standalone import ROOT, StandaloneProcess

README_ADDRESS = "127.0.0.1:8081"


def test_the_first_message_of_the_readme(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert README_ADDRESS in program
    with StandaloneProcess(tmp_path / "data") as server:
        path = tmp_path / "first.py"
        path.write_text(program.replace(README_ADDRESS, server.grpc_address))
        outcome = run_program([str(path)], tmp_path / "client")
    assert outcome.exit_code == 0, outcome.explain()
    assert re.fullmatch(r"sent \w{34}\nreceived hello, world attempt 1\n", outcome.output), outcome.explain()


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    (lines,) = re.findall(r"```sh\n(make run.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = [shlex.split(line, comments=True) for line in lines.splitlines() if line.startswith("popwheel ")]
    assert [words[1:3] for words in commands] == [["message", "send"]] * 2 + [["message", "receive"]] * 2
    with StandaloneProcess(tmp_path / "data") as server:
        environment = {**os.environ, "POPWHEEL_SERVER": server.http_url, "XDG_CONFIG_HOME": str(tmp_path)}
        outputs = [
            subprocess.run(
                [sys.executable, "-m", "popwheel_cli.main", *words[1:]],
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
            for words in commands
        ]
    sent, delayed, received, last = outputs
    assert "message_id" in sent and "recall" in delayed
    assert "hello, world" in received and "and again" not in received, "ten seconds are not over"
    assert "and again" in last


def test_the_demonstration(tmp_path: Path) -> None:
    outcome = run_program(["-m", "demo.run"], tmp_path)
    assert outcome.exit_code == 0, outcome.explain()
    assert "All as it should be" in outcome.output
    for ahead in ("in 3 s", "in 7.5 s"):
        (row,) = [line for line in outcome.output.splitlines() if ahead in line]
        assert re.search(r" \d+\.\d ms ", row), "how late it came"
