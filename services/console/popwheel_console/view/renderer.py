"""Makes pages of templates, a slice at a time: between two slices the loop serves messages."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from popwheel_common.beside_loop import run_beside_loop
from popwheel_common.clock import Clock
from popwheel_console.view import drawings, links, words

SLICE_S: Final = 0.002
"""Time that a slice of a page may take, and one piece of a template more."""

_FOLDER: Final = Path(__file__).resolve().parent.parent / "templates"


class Renderer:
    """Renders templates. All are compiled, beside the loop, when the first page is asked for.

    Args:
        clock: by which slices are cut.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._environment = Environment(
            loader=FileSystemLoader(_FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_nothing_for_none,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            count=words.count,
            rate=words.rate,
            duration=words.duration,
            size=words.size,
            iso=words.iso,
            utc=words.utc,
            clock_time=words.clock_time,
            plural=words.plural,
        )
        self._environment.globals.update(
            link=links.link, message_link=links.message_link, spark=drawings.spark, share=drawings.share
        )
        self._compiling = asyncio.Lock()
        self._is_compiled = False

    def compile_all(self) -> None:
        """Compile all templates: 0.3 s. Call it in a thread."""
        for name in self._environment.list_templates():
            self._environment.get_template(name)

    async def render(self, name: str, values: Mapping[str, Any]) -> bytes:
        """Render a template.

        Args:
            name: of the template.
            values: what it shows.
        """
        async with self._compiling:
            if not self._is_compiled:
                await run_beside_loop(self.compile_all)
                self._is_compiled = True
        pieces: list[str] = []
        begin_s = self._clock.monotonic()
        for piece in self._environment.get_template(name).generate(**values):
            pieces.append(piece)
            if self._clock.monotonic() - begin_s >= SLICE_S:
                await asyncio.sleep(0)
                begin_s = self._clock.monotonic()
        return "".join(pieces).encode()


def _nothing_for_none(value: object) -> object:
    """Write nothing for what is not known, where a template has no other word for it."""
    return "" if value is None else value
