"""Generate the protocol code under services/common/popwheel_common/pb from proto/ (run by `make proto`).

The generated modules import one another by the path of their .proto file; this rewrites these imports to the place
where the modules live, because a top-level package `apache` would clash with other people's.
"""

import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "proto"
TARGET = ROOT / "services/common/popwheel_common/pb"

_OWN_MODULE = re.compile(r"(?<![\w./])((?:apache|popwheel)\.(?:\w+\.)*v\d+)(?=\.\w+_pb2| import )")
"""Our packages, where Python code names them: before a module, or in an import of one."""


def generate(target: Path) -> int:
    """Write modules, type stubs and package files into `target`, a new folder; the exit code is protoc's."""
    target.mkdir()
    arguments = [
        f"--proto_path={SOURCE}",
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--mypy_out=quiet:{target}",
        *sorted(str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.proto")),
    ]
    code: int = protoc.main(["protoc", *arguments])
    for module in target.rglob("*.py*"):
        module.write_text(_OWN_MODULE.sub(r"popwheel_common.pb.\1", module.read_text()))
        for folder in module.relative_to(target).parents:
            (target / folder / "__init__.py").touch()
    return code


def main() -> int:
    """Generate the code anew; what stood there stays if protoc fails."""
    with TemporaryDirectory() as temporary:
        generated = Path(temporary, "pb")
        code = generate(generated)
        if code == 0:
            shutil.rmtree(TARGET, ignore_errors=True)
            shutil.copytree(generated, TARGET)
    return code


if __name__ == "__main__":
    sys.exit(main())
