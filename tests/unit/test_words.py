"""Each idea has one word, the field's: what is banned, and the word that stands for it (docs/DESIGN.md, section 1).

`python -m tests.unit.test_words [FOLDER ...]` lists the places.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.unit.source import ROOT

FOLDERS = ("services", "spark", "tools", "bench", "proto", "docs", "helm", "README.md", "CONTRIBUTING.md")
ENDINGS = {".py", ".md", ".proto", ".yaml", ".tpl", ".txt", ".html"}
OUTSIDE = (
    "services/common/popwheel_common/pb",
    "services/common/popwheel_common/exposition.py",
    "docs/decisions",
    "docs/reference",
    "proto/apache",
)
"""Generated files, the list of renamed metrics, others' files, and decision records: they say what was true once."""

BANNED = {
    r"told|tells?|telling|untold": "notify, return, report, distinguish",
    r"hear|hears|heard|hearing|unheard": "receive, learn; the seen version",
    r"held": "replicated (position), blocked (message), parked (call), buffered (bytes), open (message)",
    r"lanes?|laned": "send queue of a message group",
    r"incarnations?": "cluster id",
    r"set aside|sets aside|setting aside": "poison message",
    r"(?:give|gives|given|giving|hand|hands|handed|handing) (?:it |them |that )?out": "delivered",
    r"(?:take|takes|taken|taking|took) (?:it |them |that )?back": "revoked",
    r"(?:give|gives|given|giving|gave) (?:it |them |that )?back": "released; returned",
    r"(?:hand|hands|handed|handing) on": "forwarded",
    r"doubtful|doubted|in doubt": "suspect (replica); outcome unknown",
    r"settles?|settled|settling|settlement|unsettled": "apply cluster changes",
    r"check points?": "delivery; a snapshot",
    r"so many": "the number's meaning: `limit`, `number of ...`, `up to N`",
    r"in vain": "without a message, without effect, failed",
}
"""What is banned, as words of a text or of a name -> the field's words."""

PUBLIC = (
    *("held", "held_since_ms", "held_max", "held_messages_max", "set_aside", "set_aside_ms", "doubtful"),
    *("heard", "heard_ms", "lane_queues"),
)
"""Fields of the HTTP API and of stored state, and options: their names are a promise."""

_BANNED = {re.compile(rf"\b(?:{banned})\b", re.IGNORECASE): better for banned, better in BANNED.items()}
_NAME = re.compile(r"\b\w*(?:_|[a-z][A-Z])\w*\b")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_PUBLIC = re.compile(rf"(?:[\"'`./]|\b(?=(?:{'|'.join(PUBLIC)})(?:: |=)))(?:{'|'.join(PUBLIC)})\b")


def words(line: str) -> str:
    """The line with the words of its names apart: `_is_held` becomes ` is held`."""
    return _NAME.sub(lambda name: _HUMP.sub(" ", name[0]).replace("_", " "), line)


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, what is banned, the field's words) of a text."""
    for number, line in enumerate(text.splitlines(), 1):
        of_line = words(_PUBLIC.sub("", line))
        for banned, better in _BANNED.items():
            for found in banned.finditer(of_line):
                yield number, found[0], better


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        path = ROOT / folder
        for each in [path] if path.is_file() else sorted(path.rglob("*")):
            name = each.relative_to(ROOT).as_posix()
            if each.suffix in ENDINGS and each.is_file() and not name.startswith(OUTSIDE):
                yield each


def places(*folders: str) -> list[str]:
    """`FILE:LINE: what is banned -> the field's words`, of whole folders."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {banned} -> {better}"
        for path in files(*folders)
        for line, banned, better in found_in(path.read_text())
    ]


def test_banned_words_are_not_used() -> None:
    assert places(*FOLDERS) == []


def test_a_banned_word_is_seen_in_prose_and_names_and_a_public_name_is_not() -> None:
    text = "It was told.\ndef is_held(): ...\nclass SendLane: ...\nheld: int\nrow['set_aside']\n# It is set aside.\n"
    assert [(line, found) for line, found, _ in found_in(text)] == [
        (1, "told"),
        (2, "held"),
        (3, "Lane"),
        (6, "set aside"),
    ]


if __name__ == "__main__":
    found = places(*(sys.argv[1:] or FOLDERS))
    print("\n".join([*found, f"{len(found)} places"]))
