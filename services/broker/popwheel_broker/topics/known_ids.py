"""The ids of topics, or of groups, in a broker's log, and which of them may differ from the controllers' (pure).

Names with the same id on both sides are never scanned: there may be 100,000.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, Topic

NOT_PLACED = 0
"""Id of a topic or group of a store that the controllers have lost: it takes the next id that they give its name."""


class KnownIds:
    """Ids of topics, or of groups.

    Args:
        current: topics or groups of the view of the controllers' state, by name.
    """

    def __init__(self, current: Callable[[], Mapping[str, Topic | Group]]) -> None:
        self.ids: dict[str, int] = {}
        """Ids by name, without deleted names; or `NOT_PLACED`."""
        self.deleted: dict[str, int] = {}
        """Versions of deletions, by name, that may not be in the log."""
        self._current = current
        self._differing: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        """Names that the view has and the log does not, to be recorded some at a time."""
        self._staged_differing: dict[str, None] = {}
        self._staged_unknown: dict[str, None] = {}
        """Names that the controllers have sent and the view does not have yet."""
        self._checked: dict[str, None] = {}
        """Names that the last call of `changes` checked."""
        self._has_rest = False
        """True if `changes` left deleted names to later calls."""

    @property
    def is_complete(self) -> bool:
        """True if every name was processed."""
        return not (self._unknown or self._has_rest)

    # From the log

    def restore(self, ids: Mapping[str, int]) -> None:
        """Start with the ids of a snapshot."""
        self.ids = dict(ids)
        self.stage(self._current().values())
        self._take_staged()

    def record(self, ids: Mapping[str, int]) -> None:
        """Add ids that are in the log."""
        self.ids.update(ids)
        current = self._current()
        for name, known in ids.items():
            self._unknown.pop(name, None)
            self._differing.pop(name, None)
            if name in current and current[name].id != known:
                self._differing[name] = None

    def forget(self, name: str) -> None:
        """Remove a name that the log has dropped."""
        self.ids.pop(name, None)
        self._differing.pop(name, None)
        if name in self._current():
            self._unknown[name] = None

    def forget_ids(self) -> None:
        """Reset all ids: they are of a store that was lost."""
        self.ids = dict.fromkeys(self.ids, NOT_PLACED)
        self._differing.update(dict.fromkeys(self.ids))

    # From the controllers

    def stage(self, received: Iterable[Topic | Group]) -> None:
        """Add topics or groups that were received and are in the view soon."""
        for each in received:
            known = self.ids.get(each.name)
            if known is None:
                self._staged_unknown[each.name] = None
            elif known != each.id:
                self._staged_differing[each.name] = None

    def view_changed(self, deleted: Mapping[str, int], is_snapshot: bool) -> None:
        """Apply the new view: it has the staged names now, and deleted ones no more.

        Args:
            deleted: version of the deletion, by name.
            is_snapshot: whether the whole state was received.
        """
        self._take_staged()
        current = self._current()
        if is_snapshot:
            for names in (self._differing, self._unknown):
                for name in [name for name in names if name not in current]:
                    del names[name]
        # A slave applies no changes: what its log has dropped, or the view has again, must not accumulate.
        for name in [name for name in self.deleted if name in current or name not in self.ids]:
            del self.deleted[name]
        for name, version in deleted.items():
            if name not in current:
                self.deleted[name] = version
                self._unknown.pop(name, None)

    def _take_staged(self) -> None:
        self._differing.update(self._staged_differing)
        self._unknown.update(self._staged_unknown)
        self._staged_differing.clear()
        self._staged_unknown.clear()

    # Changes

    def changes(
        self, deleted: Callable[[int], int], dropped: int, wanted: Iterable[str], new_max: int, gone_max: int
    ) -> tuple[list[str], dict[str, int]]:
        """Return deleted names, also of those that exist again, and the ids of new ones. The rest is left to later
        calls.

        Args:
            deleted: returns the version of a deletion, or 0 if it does not count.
            dropped: unknown names with an id up to this one were deleted, whatever the view says; -1: the view decides.
            wanted: names that are needed now.
            new_max: limit of other unknown names.
            gone_max: limit of other deleted names.
        """
        for name in list(islice(self._unknown, new_max)):
            del self._unknown[name]
            self._differing[name] = None
        current = self._current()
        gone: list[str] = []
        new: dict[str, int] = {}
        checked = self._checked = dict.fromkeys(wanted)
        needed = len(checked)
        others = {**dict.fromkeys(islice(self.deleted, gone_max)), **self._differing}
        self._has_rest = False
        for number, name in enumerate({**checked, **others}):
            known, each = self.ids.get(name), current.get(name)
            if known is not None and _is_deleted(known, each, deleted(self.deleted.get(name, 0))):
                if number >= needed:
                    if gone_max <= 0:
                        self._has_rest = True
                        continue
                    gone_max -= 1
                gone.append(name)
            checked[name] = None
            if each is not None and each.id > max(-1 if known is None else known, dropped):
                new[name] = each.id
        self._has_rest |= any(name not in checked for name in self.deleted)  # soon found: the first were checked
        return gone, new

    def is_deleted(self, name: str, deleted: Callable[[int], int]) -> bool:
        """Return whether the topic or group that the log has by a name was deleted; `deleted` as in `changes`."""
        known = self.ids.get(name)
        return known is not None and _is_deleted(known, self._current().get(name), deleted(self.deleted.get(name, 0)))

    def applied(self, dropped: int) -> None:
        """Accept that the log has what `changes` returned; names that it took for deleted are checked again."""
        current, ids, checked = self._current(), self.ids, self._checked
        for name in checked:
            self.deleted.pop(name, None)
        self._differing = {
            name: None
            for name in self._differing
            if name not in checked or (name in current and ids.get(name, -1) < current[name].id <= dropped)
        }


def _is_deleted(known: int, current: Topic | Group | None, deleted: int) -> bool:
    """Return whether the topic or group with an id in the log was deleted.

    Args:
        known: the id.
        current: the topic or group of the name in the view.
        deleted: version in which the name was deleted; 0 if none was received.
    """
    if current is not None:
        return NOT_PLACED < known < current.id
    return deleted > known
