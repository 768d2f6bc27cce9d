"""The settings of topics, or of groups, in the log, and which of them differ from the controllers' (pure).

No broker needs them. They serve controllers that have lost their store (decision 0082).
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, Topic

_TEXTS_MAX: Final = 1_000
"""Limit of texts that names share; a pause, for one, makes a text that no other name has."""


def written_settings(each: Topic | Group) -> str:
    """Return the settings of a topic or group as the log has them: its message without name and id, in base64."""
    settings = type(each)()
    settings.CopyFrom(each)  # type: ignore[arg-type]
    settings.ClearField("name")
    settings.ClearField("id")
    return base64.b64encode(settings.SerializeToString(deterministic=True)).decode()


class KnownSettings:
    """Settings of topics, or of groups.

    Args:
        current: topics or groups of the view of the controllers' state, by name.
    """

    def __init__(self, current: Callable[[], Mapping[str, Topic | Group]]) -> None:
        self.known: dict[str, str] = {}
        """Settings by name, as the log has them."""
        self.former: dict[str, str] = {}
        """Settings in a store that the controllers have lost, of names that exist again."""
        self._current = current
        self._same: dict[str, str] = {}
        """Shared texts, as many topics have the same settings."""
        self._staged: dict[str, None] = {}
        """Names whose settings may have changed, by an update that the view may not have yet."""
        self._differing: dict[str, None] = {}
        """Names whose settings in the view may differ from the log's; they are compared some at a time."""

    def restore(self, known: Mapping[str, str], former: Mapping[str, str]) -> None:
        """Start with the settings of a snapshot."""
        self.known = {name: self._same.setdefault(text, text) for name, text in known.items()}
        self.former = dict(former)
        self.compare_all()

    def compare_all(self) -> None:
        """Compare all names of the view, some at a time."""
        self._differing.update(dict.fromkeys(self._current()))

    def record(self, settings: Mapping[str, str]) -> None:
        """Add settings that are in the log."""
        if len(self._same) > _TEXTS_MAX:
            self._same.clear()
        view = self._current()
        for name, text in settings.items():
            self.known[name] = self._same.setdefault(text, text)
            if name in view and written_settings(view[name]) != text:
                self._differing[name] = None
            else:
                self._differing.pop(name, None)

    def made_again(self, name: str, settings: str | None) -> None:
        """Move settings to the former ones: the topic or group was made again after its store was lost.

        Args:
            name: the name.
            settings: the new ones; None if they follow.
        """
        before = self.known.get(name)
        if before is not None and before != settings:
            self.former[name] = before

    def forget(self, name: str) -> None:
        """Remove a name that the log has dropped."""
        self.known.pop(name, None)
        self.former.pop(name, None)

    def stage(self, received: Iterable[Topic | Group]) -> None:
        """Add topics or groups that were received and are in the view soon."""
        view = self._current()
        for each in received:
            if each.name not in self.known or view.get(each.name) != each:
                self._staged[each.name] = None

    def view_changed(self) -> None:
        """Accept that the staged settings are in the view now."""
        self._differing.update(self._staged)
        self._staged.clear()

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the view's settings of new names, to be recorded with them."""
        current = self._current()
        return {name: written_settings(current[name]) for name in names if name in current}

    def unwritten(self, ids: Mapping[str, int], count: int) -> dict[str, str]:
        """Return some settings that are to be recorded, of names with the same id in the log and in the view.

        Args:
            ids: ids in the log.
            count: limit of names to compare.
        """
        current = self._current()
        found: dict[str, str] = {}
        for name in list(islice(self._differing, count)):
            each = current.get(name)
            if each is None or ids.get(name) != each.id or self.known.get(name) == (text := written_settings(each)):
                del self._differing[name]  # a new name is recorded with its settings
            else:
                found[name] = text
        return found

    def row(self, name: str) -> list[str | None]:
        """Return the row of a snapshot for a name: the name, its settings, and the former ones if there are any."""
        row = [name, self.known.get(name)]
        return [*row, self.former[name]] if name in self.former else row

    @property
    def has_unwritten(self) -> bool:
        """True if settings are to be processed."""
        return bool(self._differing)
