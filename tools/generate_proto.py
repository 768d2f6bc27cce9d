"""Generate the protocol code under services/common/pb from proto/ (run by `make proto`).

The generated modules import one another by the path of their .proto file; this rewrites these imports to the place
where the modules live, because a top-level package `apache` would clash with other people's.
"""

import re
import shutil
import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "services" / "common" / "pb"
PACKAGE = "services.common.pb"


def main() -> int:
    """Write the modules and their type stubs; the exit code is protoc's."""
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    protos = sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    code: int = protoc.main(
        ["protoc", f"-I{SOURCE}", f"-I{well_known}", f"--python_out={TARGET}", f"--mypy_out=quiet:{TARGET}", *protos]
    )
    if code != 0:
        return code
    for module in [*TARGET.rglob("*.py"), *TARGET.rglob("*.pyi")]:
        text = module.read_text()
        text = re.sub(r"^from (apache|popwheel)\.", rf"from {PACKAGE}.\1.", text, flags=re.MULTILINE)
        text = re.sub(r"^import (apache|popwheel)\.", rf"import {PACKAGE}.\1.", text, flags=re.MULTILINE)
        text = re.sub(r"(?<![\w.])(apache|popwheel)\.((?:\w+\.)+\w+_pb2)\b", rf"{PACKAGE}.\1.\2", text) if module.suffix == ".pyi" else text
        module.write_text(text)
    for folder in [TARGET, *(path for path in TARGET.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
