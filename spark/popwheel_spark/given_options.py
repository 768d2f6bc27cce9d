"""Options as Spark passes them: texts by case-insensitive names. Each is taken once; remaining ones are mistakes.

Kinds, limits and defaults are those of the table in `options.py`.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Final

from popwheel_spark.errors import OptionError
from popwheel_spark.options import OPTIONS

SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname")
"""Options that Spark itself forwards, in lower case."""
HOW_TABLES_ARE_MADE: Final = (
    "Of a SQL table: say CREATE TABLE NAME USING popwheel OPTIONS (...) without columns and without AS SELECT, or give "
    "the options to each statement, WITH (...)"
)
_TRUE_FALSE = {"true": True, "false": False}


class GivenOptions:
    """The options of one query.

    Args:
        options: names, in any case, to texts.
        passed_over: names in lower case that are Spark's own.
    """

    def __init__(self, options: Mapping[str, str], passed_over: Collection[str] = ()) -> None:
        self._left = {name.lower(): text for name, text in options.items() if name.lower() not in passed_over}
        self._known: list[str] = []

    def text(self, name: str) -> str:
        """Return an option's text without blanks around it; its default if it is not given or empty."""
        self._known.append(name)
        return self._left.pop(name.lower(), "").strip() or OPTIONS[name].default

    def words(self, name: str) -> tuple[str, ...]:
        """Return the words between commas, in order, without repeats."""
        return words(self.text(name))

    def flag(self, name: str) -> bool:
        """Return the value of a flag, `true` or `false`.

        Raises:
            OptionError: it is neither.
        """
        text = self.text(name)
        flag = _TRUE_FALSE.get(text.lower())
        if flag is None:
            raise OptionError(name, f"{text!r} is neither true nor false")
        return flag

    def number(self, name: str) -> int:
        """Return a whole number.

        Raises:
            OptionError: it is none, or below the least.
        """
        text, least = self.text(name), OPTIONS[name].least
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise OptionError(name, f"{text!r} is not a whole number from {least} on")
        return int(text)

    def choice(self, name: str) -> str:
        """Return one of some words.

        Raises:
            OptionError: it is none of them.
        """
        text, choices = self.text(name).lower(), OPTIONS[name].choices
        if text not in choices:
            raise OptionError(name, f"{text!r} is none of {', '.join(choices)}")
        return text

    def columns(self, there: Collection[str]) -> tuple[str, ...]:
        """Return the columns that the option `columns` names, in the order of the table; all if it names none.

        Args:
            there: the columns of the table.

        Raises:
            OptionError: there is no such column.
        """
        asked = {name.lower(): name for name in self.words("columns")}
        for name in asked.keys() - {each.lower() for each in there}:
            raise OptionError("columns", f"there is no column {asked[name]!r}; there are {', '.join(there)}")
        return tuple(name for name in there if name.lower() in asked) or tuple(there)

    def not_yet(self, name: str, sentence: str) -> None:
        """Refuse a reserved option.

        Raises:
            OptionError: the option is given.
        """
        if self.text(name):
            raise OptionError(name, sentence)

    def check_all_taken(self) -> None:
        """Refuse options that were not taken.

        Raises:
            OptionError: there is one; the text suggests a similar name.
        """
        for name in self._left:
            known = {each.lower(): each for each in self._known}
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(sorted(self._known))}"
            raise OptionError(name, f"there is no such option here{hint}")


def words(text: str) -> tuple[str, ...]:
    """Return the words between commas, in order, without repeats."""
    return tuple(dict.fromkeys(word for word in map(str.strip, text.split(",")) if word))
