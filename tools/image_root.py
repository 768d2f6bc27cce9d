"""Put together what the container image adds to its base, for the Dockerfile and for `make image` without an engine.

There are two folders, each a layer: the libraries, which change only with pyproject.toml, and over them the code and
the command `popwheel`. Bytecode is in both, because the root file system of a pod can't be written.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent

LEFT_OUT = (
    "aiohttp",  # only kubernetes.aio needs it
    "aiohttp_retry",
    "bin",
    "kubernetes/aio",  # the same client once more, for asyncio
    # The client's classes for each kind, which it loads when they are named: ours asks without them.
    "kubernetes/client/api",
    "kubernetes/client/models/[!_]*",
    "kubernetes/client/models/__pycache__/[!_]*",
    "numpy/_core/include",
    "numpy/f2py",
    "**/tests",
    "**/*.a",
    "**/*.h",
    "**/*.pxd",
    "**/*.pyi",
)
"""Files of the libraries that nothing imports."""

EXTRAS = ("grpcio", "kubernetes", "otel", "redis")
"""Extras of pyproject.toml that an image has: every setting of the services works in it."""

_COMMAND = """\
#!/usr/bin/env python3
import sys

from popwheel_cli.main import main

sys.exit(main())
"""
_IMPORT_ALL = """\
import importlib, pkgutil, sys
sys.path[:0] = sys.argv[1:]
import kubernetes.client, kubernetes.config
kubernetes.client.ApiClient(kubernetes.client.Configuration())
for package in pkgutil.iter_modules(sys.path[:2], ""):
    is_service = package.ispkg and package.name.startswith("popwheel_")  # what is compiled has a library beside them
    if is_service and package.name not in ("popwheel_spark", "popwheel_testing"):
        folder = importlib.import_module(package.name).__path__
        for module in pkgutil.walk_packages(folder, f"{package.name}."):
            importlib.import_module(module.name)
"""


def make_libraries(packages: Path) -> None:
    """Install what pyproject.toml asks for in the versions of requirements.lock, unless that was done already.

    Args:
        packages: the folder of packages.
    """
    project = tomllib.loads((_SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(each for name in EXTRAS for each in project["optional-dependencies"][name])]
    lock = _SOURCE / "requirements.lock"
    words = [sys.version, *LEFT_OUT, *wanted, lock.read_text(encoding="utf-8")]
    digest = hashlib.sha256("\n".join(words).encode()).hexdigest()
    made = packages / f".made-{digest}"
    if made.exists():
        return
    shutil.rmtree(packages, ignore_errors=True)
    _pip(packages, "--only-binary", ":all:", "--constraint", str(lock), *wanted)  # nothing is compiled
    for pattern in LEFT_OUT:
        for path in sorted(packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    made.touch()


def make_code(root: Path, packages: Path, libraries: Path, compiled: Path | None) -> None:
    """Install the package itself and its command, and see that every module of it can be imported.

    Args:
        root: of the folder.
        packages: the folder of packages within.
        libraries: that of the libraries.
        compiled: where tools/compile.py has put compiled modules for this Python; None for an image without any.
    """
    shutil.rmtree(root, ignore_errors=True)
    _pip(packages, "--no-deps", str(_SOURCE))
    shutil.rmtree(packages / "bin")
    if compiled is not None:
        for path in compiled.rglob("*.so"):
            shutil.copy(path, packages / path.relative_to(compiled))
    command = root / "usr/local/bin/popwheel"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND, encoding="utf-8")
    command.chmod(0o755)
    # Without the packages of whoever runs this, which would hide that one is missing.
    subprocess.run([sys.executable, "-I", "-S", "-c", _IMPORT_ALL, str(libraries), str(packages)], check=True)


def _pip(target: Path, *words: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*pip, "--target", str(target), *words], check=True)


def main() -> int:
    """Make one of the folders, or both; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where `libraries` and `code` are made")
    parser.add_argument("--only-libraries", action="store_true", help="for the Dockerfile's cache")
    parser.add_argument(
        "--packages",
        type=Path,
        default=Path("usr/local/lib/python3.11/dist-packages"),
        help="the base's folder of packages; that of Debian 12 if not given",
    )
    parser.add_argument("--compiled", type=Path, help="a folder that tools/compile.py has made, with the same Python")
    words = parser.parse_args()
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if ours not in words.packages.parts:
        print(
            f"{words.packages} is not filled by {ours}: make image PYTHON=... with the base's Python", file=sys.stderr
        )
        return 1
    libraries, code = words.folder / "libraries", words.folder / "code"
    make_libraries(libraries / words.packages)
    if not words.only_libraries:
        make_code(code, code / words.packages, libraries / words.packages, words.compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
