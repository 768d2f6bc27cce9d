"""Settings in force: all, or those that differ from the defaults, with their sources."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from popwheel_console.answer import Answer, Question
from popwheel_console.page import Page
from popwheel_console.visit import Refused, Visit, silences

DEFAULT: Final = "default"
WHICH: Final = ("changed", "all")
_KEYS_MAX: Final = 60
"""Limit of keys shown at once."""
_PROCESSES_MAX: Final = 12
"""Limit of compared processes: all are compared in one turn of the loop."""
_VARIANTS_MAX: Final = 4
"""Limit of shown values of one setting."""
_NAMES_MAX: Final = 3
"""Limit of shown processes with the same value."""
_VALUE_LENGTH_MAX: Final = 120


_Variant = tuple[str, bool, str]
"""A value or its JSON, whether it is a text, and its source."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Value of a setting, and the processes with it.

    Args:
        value: as JSON, or the beginning of a long one.
        source: where it came from.
        processes: the first of those that have it.
        others: number of the other ones.
    """

    value: str
    source: str
    processes: Sequence[str]
    others: int


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting.

    Args:
        key: as in a file of settings.
        variants: its values; more than one if processes differ.
        others: number of further values.
    """

    key: str
    variants: Sequence[Variant]
    others: int


@dataclass(frozen=True, slots=True)
class SettingsPage:
    """Data of the page with the settings of all processes.

    Args:
        process, find, which: that are asked for.
        after: the key behind which the page begins.
        processes: that answered.
        rows: of this page; None: not answered yet.
        total: how many settings there are of those asked for.
        next: the key behind which the next page begins; empty: this is the last.
        unanswered: who could not be asked.
    """

    process: str
    find: str
    which: str
    after: str
    processes: Sequence[str]
    rows: Sequence[SettingRow] | None
    total: int
    next: str
    unanswered: Sequence[str]


async def gather(visit: Visit) -> SettingsPage:
    """Fetch the settings of all processes, or of one."""
    asked = {name: visit.asked_for(name) for name in ("process", "find", "after")}
    asked["which"] = visit.asked_for("which", WHICH)
    answer = (await visit.ask(settings=Question("/settings", {"process": asked["process"]})))["settings"]
    if not answer.is_good and not answer.is_pending:
        raise Refused(answer)
    return settings_page(asked, answer)


def settings_page(asked: Mapping[str, str], answer: Answer) -> SettingsPage:
    """Return the page of this answer."""
    answered = answer.rows("processes")
    processes, others = answered[:_PROCESSES_MAX], len(answered) - _PROCESSES_MAX
    wanted = _wanted(processes, asked["find"].lower(), is_all=asked["which"] != WHICH[0])
    following = [key for key in sorted(wanted) if key > asked["after"]]
    shown = following[:_KEYS_MAX]
    by_key = _by_key(processes, shown)
    return SettingsPage(
        **asked,
        processes=[str(each["process"]) for each in answered],
        rows=None if answer.is_pending else [_row(key, by_key[key]) for key in shown],
        total=len(wanted),
        next=shown[-1] if len(following) > len(shown) else "",
        unanswered=[
            *silences(answer),
            *([f"{others} of the processes: a page compares {_PROCESSES_MAX}; name another one"] if others > 0 else []),
        ],
    )


def _wanted(processes: Sequence[Mapping[str, Any]], find: str, *, is_all: bool) -> set[str]:
    """Return the selected keys."""
    keys = {
        str(each["key"])
        for process in processes
        for each in process["settings"] or ()
        if is_all or each["source"] != DEFAULT
    }
    return {key for key in keys if find in key.lower()}


def _by_key(processes: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, dict[_Variant, list[str]]]:
    """Return the values by key, with their sources, and the processes that have each."""
    found: dict[str, dict[_Variant, list[str]]] = {key: {} for key in keys}
    for process in processes:
        for each in process["settings"] or ():
            variants = found.get(str(each["key"]))
            if variants is not None:
                value = each["value"]
                # Most values are plain and compared as they are: encoding each one is slow.
                same = value if isinstance(value, str) else _written(value)
                variants.setdefault((same, isinstance(value, str), str(each["source"])), []).append(
                    str(process["process"])
                )
    return found


def _row(key: str, variants: Mapping[_Variant, Sequence[str]]) -> SettingRow:
    shown = [
        Variant(
            _beginning(_written(value) if is_text else value),
            source,
            processes[:_NAMES_MAX],
            max(0, len(processes) - _NAMES_MAX),
        )
        for (value, is_text, source), processes in list(variants.items())[:_VARIANTS_MAX]
    ]
    return SettingRow(key, shown, max(0, len(variants) - _VARIANTS_MAX))


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _beginning(value: str) -> str:
    return value if len(value) <= _VALUE_LENGTH_MAX else value[:_VALUE_LENGTH_MAX] + "…"


PAGE: Final = Page("/settings", "settings.html", gather, title="Settings", section="/settings", refresh_s=30)
