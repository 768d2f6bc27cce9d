"""Compile the way of a message with mypyc: the same modules as machine code, for wheels.

The source is one: each module runs as it stands where nothing was compiled. docs/decisions/0051-compiled-modules.md
says why, and what compiled code does otherwise.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path(__file__).resolve().parent.parent

COMPILED = (
    "common/cold_reads.py",
    "common/heap.py",
    "common/histogram.py",
    "common/series.py",
    "common/shares.py",
    "common/transitions.py",
    "common/contract/*.py",
    "rpc/deadline_timer.py",
    "rpc/deadlines.py",
    "rpc/http2/*.py",
    "rpc/client/*.py",
    "rpc/limits.py",
    "rpc/local.py",
    "rpc/server/call_counts.py",
    "rpc/server/delayed_end.py",
    "rpc/server/host.py",
    "rpc/server/light_task.py",
    "rpc/server/server.py",
    "rpc/server/server_call.py",
    "rpc/server/server_connection.py",
    "rpc/server/totals.py",
    "rpc/service.py",
    "rpc/socket/endpoint.py",
    "rpc/status.py",
    "proxy/ack/*.py",
    "proxy/background.py",
    "proxy/errors.py",
    "proxy/failover/brokers.py",
    "proxy/failover/master_calls.py",
    "proxy/lite/lite_subscriptions.py",
    "proxy/payload.py",
    "proxy/plain_properties.py",
    "proxy/receive/*.py",
    "proxy/send/*.py",
    "proxy/server.py",
    "proxy/session/catalog.py",
    "proxy/session/clients.py",
    "proxy/session/resources.py",
    "proxy/statuses.py",
    "proxy/validation.py",
    "broker/calls/dedup.py",
    "broker/calls/put_handler.py",
    "broker/calls/term_reads.py",
    "broker/filter/*.py",
    "broker/lite/*.py",
    "broker/pop/*.py",
    "broker/progress/*.py",
    "broker/records/*.py",
    "broker/state/*.py",
    "broker/store/*.py",
    "broker/timer/*.py",
    "broker/wheel/*.py",
)
"""Below `services`: what a message passes through."""

INTERPRETED = re.compile(r"^(?:from|import) (?:numpy|prometheus_client|pydantic)\b", re.MULTILINE)
"""Modules that import one of these stay out: their types are not what mypyc takes them for, and C does their work."""

LEFT_OUT = ("broker/timer/timer_server.py",)
"""Further ones: they are called a few times a second."""

FLAGS = "-flto=auto -fvisibility=hidden"
"""Of the C compiler: functions may be put into one another across modules, and are called without a look-up."""

_BUILD = """\
import sys
from mypyc.build import mypycify
from setuptools import setup

modules = sys.argv[2:]
sys.argv[1:] = ["--quiet", "build_ext", "--inplace"]
setup(
    name="popwheel",
    ext_modules=mypycify(
        ["--config-file", "mypy.toml", *modules], opt_level="2", debug_level="0", multi_file=True,
        group_name="popwheel",
    ),
)
"""


def modules(services: Path) -> list[Path]:
    """What is compiled.

    Args:
        services: the folder `services`.
    """
    found = {path for pattern in COMPILED for path in services.glob(pattern)} - {services / each for each in LEFT_OUT}
    return sorted(
        path
        for path in found
        if path.name != "__init__.py" and not INTERPRETED.search(path.read_text(encoding="utf-8"))
    )


def with_initializers(source: str) -> str:
    """Write out the `__init__` of dataclasses, which mypyc leaves to the interpreter: it takes five times as long.

    Args:
        source: of a module.

    Returns:
        The same, line for line, but for dataclasses that are not frozen, have no base, and whose fields are plain or
        have a default. Their initializers stand in a blank line behind them.
    """
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if not isinstance(node, ast.ClassDef) or node.bases or len(node.decorator_list) != 1:
            continue
        decorator = node.decorator_list[0]
        written = ast.unparse(decorator)
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        plain = all("field(" not in ast.unparse(each) and "Var[" not in ast.unparse(each) for each in fields)
        is_usual = written.startswith("dataclass(slots=True") and not methods & {"__init__", "__post_init__"}
        if not (is_usual and fields and plain):
            continue
        assert decorator.end_lineno is not None and node.end_lineno is not None
        names = [ast.unparse(each.target) for each in fields]
        begin = f"    def __init__(self, {', '.join(map(ast.unparse, fields))}) -> None: "
        blank = slice(node.end_lineno, node.end_lineno + 1)
        assert lines[blank] in ([], [""]), "there is no blank line behind a class"
        lines[blank] = [begin + "; ".join(f"self.{name} = {name}" for name in names)]
        lines[decorator.end_lineno - 1] = "@" + written.replace("(", "(init=False, ", 1)
    return "\n".join(lines) + "\n"


def compile_into(folder: Path) -> int:
    """Copy `services` and compile it there; the compiled modules stand beside their sources.

    Args:
        folder: gets `services`, and one library that all compiled modules share. It is emptied first.

    Returns:
        How many modules were compiled.

    Raises:
        CalledProcessError: the compiler found something that it can't do; it has said what.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(SOURCE / "services", folder / "services", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(SOURCE / "pyproject.toml", folder / "mypy.toml")  # setuptools would take up one of the usual name
    found = modules(folder / "services")
    for path in found:
        path.write_text(with_initializers(path.read_text(encoding="utf-8")), encoding="utf-8")
    names = [str(path.relative_to(folder)) for path in found]
    words = [sys.executable, "-c", _BUILD, "build", *names]
    flags = {name: f"{os.environ.get(name, '')} {FLAGS}" for name in ("CFLAGS", "LDFLAGS")}
    done = subprocess.run(
        words, cwd=folder, env=os.environ | flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:  # else it warns of what decision 51 names
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
    for each in ("build", ".mypy_cache"):
        shutil.rmtree(folder / each)
    (folder / "mypy.toml").unlink()
    return len(found)


class CompiledWheel(BuildHookInterface):  # type: ignore[type-arg]  # of its configuration, which is none
    """Puts compiled modules into a wheel, if `HATCH_BUILD_HOOK_ENABLE_CUSTOM` is set (`make wheel`)."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the files are collected."""
        folder = Path(self.root) / "build" / "wheel"
        compile_into(folder)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in folder.rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))


def main(words: Sequence[str] | None = None) -> int:
    """Compile into a folder; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the compiled tree is made, for example build/compiled")
    folder: Path = parser.parse_args(words).folder
    print(f"{compile_into(folder)} modules are compiled in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
