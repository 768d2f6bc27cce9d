"""Gather what `make site` makes pages of, below build/pages.

Documents stand beside the code that they are about, and MkDocs wants all pages in one folder. So each document, and
each file that one of them links to, is copied there, at the same path. Links stay as they are.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build/pages"
LOOK = ("site.css", "site.js")
"""Files of this folder that all pages load."""
FOLDERS = ("docs", "examples", "helm", "services", "spark")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def main() -> int:
    """Copy all of it anew; the exit code."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in sorted({linked for document in documents() for linked in (document, *links_of(document))}):
        copy = PAGES / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    for name in LOOK:
        shutil.copyfile(ROOT / "tools" / name, PAGES / name)
    return 0


def documents() -> Iterator[Path]:
    """Pages of the site."""
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        yield from (ROOT / folder).rglob("*.md")


def links_of(document: Path) -> Iterator[Path]:
    """The files of this repository that a page links to."""
    for target in LINK.findall(document.read_text()):
        path = (document.parent / target).resolve()
        if path.is_file() and path.is_relative_to(ROOT):
            yield path


if __name__ == "__main__":
    sys.exit(main())
