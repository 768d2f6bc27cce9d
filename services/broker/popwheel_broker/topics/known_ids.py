"""The ids of topics, or of groups, that a broker's log knows, and which of them may differ from the controllers' word.

Names of which the two agree are never gone through: there may be 100,000 (pure).
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from popwheel_common.pb.popwheel.v1.controller_pb2 import Group, Topic

NOT_PLACED = 0
"""Id of what was made by a state that the controllers have lost: it takes the id that they give next under its name."""


class KnownIds:
    """Topics, or groups.

    Args:
        held: those that there are by the view of the controllers' state, by name.
    """

    def __init__(self, held: Callable[[], Mapping[str, Topic | Group]]) -> None:
        self.ids: dict[str, int] = {}
        """Ids of names that were seen, and not their deletion; or `NOT_PLACED`."""
        self.deleted: dict[str, int] = {}
        """Versions in which names were deleted, of which the log may not know."""
        self._held = held
        self._differing: dict[str, None] = {}
        self._unknown: dict[str, None] = {}
        """Names that the view has and the log does not know, to be written down some at a time."""
        self._told_differing: dict[str, None] = {}
        self._told_unknown: dict[str, None] = {}
        """Names that the controllers have sent, and the view does not have yet."""
        self._looked_at: dict[str, None] = {}
        """Names that `changes` dealt with last."""
        self._has_rest = False
        """True if it left deleted ones to later calls."""

    @property
    def is_settled(self) -> bool:
        """True if every name was processed."""
        return not (self._unknown or self._has_rest)

    # What the log says

    def restore(self, ids: Mapping[str, int]) -> None:
        """Begin with these."""
        self.ids = dict(ids)
        self.tell(self._held().values())
        self._take_told()

    def note(self, ids: Mapping[str, int]) -> None:
        """They are in the log."""
        self.ids.update(ids)
        held = self._held()
        for name, known in ids.items():
            self._unknown.pop(name, None)
            self._differing.pop(name, None)
            if name in held and held[name].id != known:
                self._differing[name] = None

    def forget(self, name: str) -> None:
        """It is gone from the log."""
        self.ids.pop(name, None)
        self._differing.pop(name, None)
        if name in self._held():
            self._unknown[name] = None

    def forget_ids(self) -> None:
        """Their ids are those of a state that was lost."""
        self.ids = dict.fromkeys(self.ids, NOT_PLACED)
        self._differing.update(dict.fromkeys(self.ids))

    # What the controllers say

    def tell(self, held: Iterable[Topic | Group]) -> None:
        """They are told of, and are in the view soon."""
        for each in held:
            known = self.ids.get(each.name)
            if known is None:
                self._told_unknown[each.name] = None
            elif known != each.id:
                self._told_differing[each.name] = None

    def hear(self, deleted: Mapping[str, int], is_snapshot: bool) -> None:
        """Apply the new view: added names are in it now, and deleted ones are not.

        Args:
            deleted: in which version each name was deleted.
            is_snapshot: whether all of the state was told anew.
        """
        self._take_told()
        held = self._held()
        if is_snapshot:
            for names in (self._differing, self._unknown):
                for name in [name for name in names if name not in held]:
                    del names[name]
        # A slave settles nothing: what its log has dropped, or the view has again, need not be kept in mind for ever.
        for name in [name for name in self.deleted if name in held or name not in self.ids]:
            del self.deleted[name]
        for name, version in deleted.items():
            if name not in held:
                self.deleted[name] = version
                self._unknown.pop(name, None)

    def _take_told(self) -> None:
        self._differing.update(self._told_differing)
        self._unknown.update(self._told_unknown)
        self._told_differing.clear()
        self._told_unknown.clear()

    # What follows from both

    def changes(
        self, deleted: Callable[[int], int], dropped: int, wanted: Iterable[str], new_max: int, gone_max: int
    ) -> tuple[list[str], dict[str, int]]:
        """Names that are gone, also if they were made again since; and ids of new ones. Others are left to later calls.

        Args:
            deleted: gives the version of a deletion, or 0 if it does not count.
            dropped: what has no larger id and is not known was deleted, whatever the view says; -1 if the view tells.
            wanted: names of which it must be known now.
            new_max: so many others that are unknown are looked at.
            gone_max: so many others that are gone are told of.
        """
        for name in list(islice(self._unknown, new_max)):
            del self._unknown[name]
            self._differing[name] = None
        held = self._held()
        gone: list[str] = []
        new: dict[str, int] = {}
        looked_at = self._looked_at = dict.fromkeys(wanted)
        needed = len(looked_at)
        others = {**dict.fromkeys(islice(self.deleted, gone_max)), **self._differing}
        self._has_rest = False
        for number, name in enumerate({**looked_at, **others}):
            known, each = self.ids.get(name), held.get(name)
            if known is not None and _is_gone(known, each, deleted(self.deleted.get(name, 0))):
                if number >= needed:
                    if gone_max <= 0:
                        self._has_rest = True
                        continue
                    gone_max -= 1
                gone.append(name)
            looked_at[name] = None
            if each is not None and each.id > max(-1 if known is None else known, dropped):
                new[name] = each.id
        self._has_rest |= any(name not in looked_at for name in self.deleted)  # soon found: the first were looked at
        return gone, new

    def is_gone(self, name: str, deleted: Callable[[int], int]) -> bool:
        """Return whether a name that the log knows is of what is not there any more; `deleted` as in `changes`."""
        known = self.ids.get(name)
        return known is not None and _is_gone(known, self._held().get(name), deleted(self.deleted.get(name, 0)))

    def settled(self, dropped: int) -> None:
        """Accept that the changes of `changes` are in the log; names that it took for deleted are checked again."""
        held, ids, looked_at = self._held(), self.ids, self._looked_at
        for name in looked_at:
            self.deleted.pop(name, None)
        self._differing = {
            name: None
            for name in self._differing
            if name not in looked_at or (name in held and ids.get(name, -1) < held[name].id <= dropped)
        }


def _is_gone(known: int, held: Topic | Group | None, deleted: int) -> bool:
    """Return whether what the log knows by an id does not exist any more.

    Args:
        known: the id.
        held: what has the name by the view.
        deleted: version in which the name was deleted; 0 if that was not heard.
    """
    if held is not None:
        return NOT_PLACED < known < held.id
    return deleted > known
