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
PACKAGES = sorted((SOURCE / "services").glob("*/popwheel_*"))
"""Modules of the services."""

COMPILED = (
    "popwheel_common/cold_reads.py",
    "popwheel_common/heap.py",
    "popwheel_common/histogram.py",
    "popwheel_common/series.py",
    "popwheel_common/shares.py",
    "popwheel_common/transitions.py",
    "popwheel_common/contract/*.py",
    "popwheel_rpc/deadline_timer.py",
    "popwheel_rpc/deadlines.py",
    "popwheel_rpc/http2/*.py",
    "popwheel_rpc/client/*.py",
    "popwheel_rpc/limits.py",
    "popwheel_rpc/local.py",
    "popwheel_rpc/server/call_counts.py",
    "popwheel_rpc/server/delayed_end.py",
    "popwheel_rpc/server/host.py",
    "popwheel_rpc/server/light_task.py",
    "popwheel_rpc/server/server.py",
    "popwheel_rpc/server/server_call.py",
    "popwheel_rpc/server/server_connection.py",
    "popwheel_rpc/server/totals.py",
    "popwheel_rpc/service.py",
    "popwheel_rpc/socket/endpoint.py",
    "popwheel_rpc/status.py",
    "popwheel_proxy/brokers/background.py",
    "popwheel_proxy/protocol/errors.py",
    "popwheel_proxy/brokers/brokers.py",
    "popwheel_proxy/brokers/master_calls.py",
    "popwheel_proxy/lite/lite_subscriptions.py",
    "popwheel_proxy/protocol/payload.py",
    "popwheel_proxy/protocol/plain_properties.py",
    "popwheel_proxy/receive/*.py",
    "popwheel_proxy/send/*.py",
    "popwheel_proxy/server.py",
    "popwheel_proxy/session/catalog.py",
    "popwheel_proxy/session/clients.py",
    "popwheel_proxy/session/resources.py",
    "popwheel_proxy/protocol/statuses.py",
    "popwheel_proxy/protocol/validation.py",
    "popwheel_broker/calls/dedup.py",
    "popwheel_broker/calls/put_handler.py",
    "popwheel_broker/calls/term_reads.py",
    "popwheel_broker/consume/*.py",
    "popwheel_broker/core/*.py",
    "popwheel_broker/delay/*.py",
    "popwheel_broker/lite/*.py",
    "popwheel_broker/log/*.py",
)
"""Modules that a message passes through."""

FOREIGN = re.compile(r"^(?:from|import) (?:numpy|prometheus_client|pydantic)\b", re.MULTILINE)
"""Imports that no compiled module has: their types are not what mypyc takes them for, and C does their work."""

LEFT_OUT = (
    # they have a foreign import
    "popwheel_broker/consume/quarantine_metrics.py",
    "popwheel_broker/core/wings.py",
    "popwheel_broker/delay/pending.py",
    "popwheel_broker/delay/recovery.py",
    "popwheel_broker/delay/timer_log.py",
    "popwheel_broker/delay/timer_metrics.py",
    "popwheel_broker/delay/unit.py",
    "popwheel_broker/delay/wheel.py",
    "popwheel_broker/lite/metrics.py",
    "popwheel_broker/log/record_block.py",
    "popwheel_common/contract/record_block.py",
    "popwheel_proxy/receive/metrics.py",
    "popwheel_proxy/send/metrics.py",
    # they are called seldom
    "popwheel_broker/consume/quarantine.py",
    "popwheel_broker/consume/quarantine_entry.py",
    "popwheel_broker/consume/quarantine_table.py",
    "popwheel_broker/delay/timer_server.py",
    "popwheel_proxy/receive/client_list.py",
    "popwheel_proxy/receive/poll_list.py",
    "popwheel_proxy/receive/redis_counts.py",
    "popwheel_proxy/receive/shared_count.py",
    "popwheel_proxy/send/check_links.py",
    "popwheel_proxy/send/end_handler.py",
)
"""Modules among them that stay interpreted. Each is named: one more import shall not make a send dearer unseen."""

FLAGS = "-flto=auto -fvisibility=hidden"
"""Flags of the C compiler: functions may be put into one another across modules, and are called without a look-up."""

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


def modules(packages: Sequence[Path] = PACKAGES) -> list[Path]:
    """The files that are compiled.

    Args:
        packages: the folders of the packages.

    Raises:
        ValueError: one of them has a foreign import.
    """
    folders = {package.parent for package in packages}
    found = {path for folder in folders for pattern in COMPILED for path in folder.glob(pattern)}
    found -= {folder / each for folder in folders for each in LEFT_OUT}
    found = {path for path in found if path.name != "__init__.py"}
    foreign = sorted(str(path) for path in found if FOREIGN.search(path.read_text(encoding="utf-8")))
    if foreign:
        raise ValueError(
            f"{', '.join(foreign)}: move what needs numpy and the like elsewhere, or name the module in LEFT_OUT"
        )
    return sorted(found)


_EMPTY = {"dict": "{}", "list": "[]"}
"""Factories as they are written where they are called."""


def with_initializers(source: str) -> str:
    """Write out the `__init__` of dataclasses, which mypyc leaves to the interpreter: it takes five times as long.

    Args:
        source: of a module.

    Returns:
        The same, line for line, but for dataclasses that are not frozen, have no base, and whose fields are plain or
        have a default or its factory. Their initializers stand in a blank line behind them.
    """
    lines = source.splitlines()
    for node in reversed(ast.parse(source).body):
        if not isinstance(node, ast.ClassDef) or node.bases or len(node.decorator_list) != 1:
            continue
        decorator = node.decorator_list[0]
        written = ast.unparse(decorator)
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        initialized = [_initialized(each) for each in fields]
        is_usual = written.startswith("dataclass(slots=True") and "__init__" not in methods
        if not (is_usual and fields) or None in initialized:
            continue
        assert decorator.end_lineno is not None and node.end_lineno is not None
        parts = [each for each in initialized if each is not None]
        statements = [statement for _, statement in parts]
        if "__post_init__" in methods:
            statements.append("self.__post_init__()")
        blank = slice(node.end_lineno, node.end_lineno + 1)
        assert lines[blank] in ([], [""]), "there is no blank line behind a class"
        lines[blank] = [
            f"    def __init__(self, {', '.join(parameter for parameter, _ in parts)}) -> None: {'; '.join(statements)}"
        ]
        lines[decorator.end_lineno - 1] = "@" + written.replace("(", "(init=False, ", 1)
    return "\n".join(lines) + "\n"


def _initialized(field: ast.AnnAssign) -> tuple[str, str] | None:
    """Return the parameter of a dataclass's field and the statement that sets it; None if it is of another kind."""
    name, value = ast.unparse(field.target), field.value
    if "Var[" in ast.unparse(field.annotation):
        return None
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return ast.unparse(field), f"self.{name} = {name}"
    if [each.arg for each in value.keywords] != ["default_factory"] or isinstance(field.annotation, ast.Constant):
        return None
    factory = value.keywords[0].value
    made = ast.unparse(factory.body if isinstance(factory, ast.Lambda) else factory)
    if not isinstance(factory, ast.Lambda):
        made = _EMPTY.get(made, f"{made}()")
    return (
        f"{name}: {ast.unparse(field.annotation)} | None = None",
        f"self.{name} = {made} if {name} is None else {name}",
    )


def compile_into(folder: Path) -> int:
    """Copy the packages of the services and compile them there; compiled modules stand beside their sources.

    Args:
        folder: gets the packages, and one library that all compiled modules share. It is emptied first.

    Returns:
        How many modules were compiled.

    Raises:
        CalledProcessError: the compiler found something that it can't do; it has said what.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copies = [folder / package.name for package in PACKAGES]
    for package, copy in zip(PACKAGES, copies, strict=True):
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(SOURCE / "pyproject.toml", folder / "mypy.toml")  # setuptools would take up one of the usual name
    found = modules(copies)
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
