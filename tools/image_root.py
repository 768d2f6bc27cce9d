"""Put together what the container image adds to its base, where no container engine is at hand (`make image`).

The folder holds the package with all that it needs, made by pip from wheels for a base with Debian's Python 3.11, and
the `popwheel` command. A test bed lays it over such a base image.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent
_LIBRARIES = Path("usr/local/lib/python3.11/dist-packages")
_COMMAND = """\
#!/usr/bin/python3
import sys

from services.cli.main import main

sys.exit(main())
"""


def main() -> int:
    """Make the folder anew; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    root = parser.parse_args().folder
    if sys.version_info[:2] != (3, 11):
        print(
            "the base has Python 3.11, so it takes that one to fill it: make image PYTHON=python3.11", file=sys.stderr
        )
        return 1
    shutil.rmtree(root, ignore_errors=True)
    libraries = root / _LIBRARIES
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(libraries), f"{_SOURCE}[kubernetes]"], check=True)
    shutil.rmtree(libraries / "bin")
    command = root / "usr/local/bin/popwheel"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND, encoding="utf-8")
    command.chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(main())
