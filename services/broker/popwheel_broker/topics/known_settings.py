"""The settings of topics, or of groups, as the log has them, and which of them the controllers tell otherwise (pure).

A broker needs none of it. They are there for controllers that have lost their store (decision 0082).
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, Topic

_TEXTS_MAX: Final = 1_000
"""Texts that are kept once for all names; a pause, for one, makes texts that no other name has."""


def written_settings(each: Topic | Group) -> str:
    """The settings of a topic or group as the log has them: its message without name and id, in base64."""
    settings = type(each)()
    settings.CopyFrom(each)  # type: ignore[arg-type]
    settings.ClearField("name")
    settings.ClearField("id")
    return base64.b64encode(settings.SerializeToString(deterministic=True)).decode()


class KnownSettings:
    """Settings of topics, or of groups.

    Args:
        held: what there is by the view of the controllers' state, by name.
    """

    def __init__(self, held: Callable[[], Mapping[str, Topic | Group]]) -> None:
        self.known: dict[str, str] = {}
        """Settings by name, as the log has them."""
        self.former: dict[str, str] = {}
        """Settings in a state that the controllers have lost, of names that were made again since."""
        self._held = held
        self._same: dict[str, str] = {}
        """Each text once, as many topics have the same settings."""
        self._told: dict[str, None] = {}
        """Names that are told of with settings that may be others, and the view may not have those yet."""
        self._differing: dict[str, None] = {}
        """Names of which the view may have other settings than the log; they are compared some at a time."""

    def restore(self, known: Mapping[str, str], former: Mapping[str, str]) -> None:
        """Begin with these."""
        self.known = {name: self._same.setdefault(text, text) for name, text in known.items()}
        self.former = dict(former)
        self.look_through()

    def look_through(self) -> None:
        """Compare all names of the view, some at a time."""
        self._differing.update(dict.fromkeys(self._held()))

    def note(self, settings: Mapping[str, str]) -> None:
        """They are in the log."""
        if len(self._same) > _TEXTS_MAX:
            self._same.clear()
        view = self._held()
        for name, text in settings.items():
            self.known[name] = self._same.setdefault(text, text)
            if name in view and written_settings(view[name]) != text:
                self._differing[name] = None
            else:
                self._differing.pop(name, None)

    def made_again(self, name: str, settings: str | None) -> None:
        """It was made again after the state that it was of was lost.

        Args:
            name: the name.
            settings: that it has from now on; None if they follow.
        """
        before = self.known.get(name)
        if before is not None and before != settings:
            self.former[name] = before

    def forget(self, name: str) -> None:
        """It is gone from the log."""
        self.known.pop(name, None)
        self.former.pop(name, None)

    def tell(self, held: Iterable[Topic | Group]) -> None:
        """They are told of, and are in the view soon."""
        view = self._held()
        for each in held:
            if each.name not in self.known or view.get(each.name) != each:
                self._told[each.name] = None

    def hear(self) -> None:
        """Accept that the settings that were sent are in the view now."""
        self._differing.update(self._told)
        self._told.clear()

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """The settings by the view, to be written down with what is new."""
        held = self._held()
        return {name: written_settings(held[name]) for name in names if name in held}

    def unwritten(self, ids: Mapping[str, int], count: int) -> dict[str, str]:
        """Some of the settings that are to be written down, of names that the log knows by the id that the view has.

        Args:
            ids: as the log knows them.
            count: so many names are looked at.
        """
        held = self._held()
        found: dict[str, str] = {}
        for name in list(islice(self._differing, count)):
            each = held.get(name)
            if each is None or ids.get(name) != each.id or self.known.get(name) == (text := written_settings(each)):
                del self._differing[name]  # what is new comes with its settings
            else:
                found[name] = text
        return found

    def row(self, name: str) -> list[str | None]:
        """Row of a checkpoint for a name: the name, its settings, and those before if it was made again."""
        row = [name, self.known.get(name)]
        return [*row, self.former[name]] if name in self.former else row

    @property
    def has_unwritten(self) -> bool:
        """True if settings are to be processed."""
        return bool(self._differing)
