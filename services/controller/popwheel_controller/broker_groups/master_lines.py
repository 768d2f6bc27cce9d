"""Leaves a line in the log of changes whenever a broker group has a new master, or none any more."""

from collections.abc import Callable

from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, in_short
from popwheel_controller.cluster.change_log import ChangeLog


def master_lines(changes: ChangeLog, leads: Callable[[], bool]) -> Callable[[GroupState | None, GroupState], None]:
    """A listener for `GroupKeeper.subscribe`. What an operator asked for has a line of its own before it.

    Args:
        changes: takes the lines.
        leads: says whether this controller leads: another one's choices are its own to tell.
    """

    def changed(old: GroupState | None, new: GroupState) -> None:
        known = NO_MASTER if old is None else old.master
        if leads() and (new.master != known or (old is not None and new.epoch > old.epoch)):
            changes.record_soon("broker elect", new.name, "" if old is None else in_short(old), in_short(new))

    return changed
