"""Templates of the console that are compiled once: by each console anew they take a third of a second of CPU."""

from functools import partial
from types import CodeType

from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket

from popwheel_console.view import renderer


class _Compiled(BytecodeCache):
    """What templates were compiled to, by name and text."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Find what a template was compiled to."""
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep it."""
        assert bucket.code is not None
        self._codes[bucket.key, bucket.checksum] = bucket.code


def keep_compiled() -> None:
    """Have this process, and what is forked from it, compile each template once."""
    vars(renderer)["Environment"] = partial(Environment, bytecode_cache=_Compiled())
