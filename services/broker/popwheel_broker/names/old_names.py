"""Names in a log or checkpoint that an older release let in and the gate (`names.py`) would not."""

import structlog

from popwheel_common.contract.names import shown

_WARNED_MAX = 100

_log = structlog.get_logger()


class OldNames:
    """Warns of each such name once, and of no more than a hundred: what is done about it is done for all."""

    def __init__(self) -> None:
        self._warned: set[int] = set()

    def met(self, name: str, outcome: str) -> None:
        """A name was met.

        Args:
            name: of a topic.
            outcome: what becomes of what has it.
        """
        if len(self._warned) < _WARNED_MAX and hash(name) not in self._warned:
            self._warned.add(hash(name))
            _log.warning("an older release let in a name that can't be", topic=shown(name), outcome=outcome)
