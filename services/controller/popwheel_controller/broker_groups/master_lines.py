"""Lines of the change log for each new master of a broker group, and for each loss of one."""

from collections.abc import Callable

from popwheel_controller.broker_groups.broker_group import NO_MASTER, GroupState, in_short
from popwheel_controller.cluster.change_log import ChangeLog


def master_lines(changes: ChangeLog, leads: Callable[[], bool]) -> Callable[[GroupState | None, GroupState], None]:
    """Return a listener for `GroupWriter.subscribe`; an operator's request has a line of its own before it.

    Args:
        changes: the change log.
        leads: returns whether this controller leads; a leader records its own elections.
    """

    def changed(old: GroupState | None, new: GroupState) -> None:
        known = NO_MASTER if old is None else old.master
        if leads() and (new.master != known or (old is not None and new.epoch > old.epoch)):
            changes.record_soon("broker elect", new.name, "" if old is None else in_short(old), in_short(new))

    return changed
