"""What the official client knows of what it did, so that pages can be compared with it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

HOSTILE: Final = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(2)>",
    "\u202eevil\u202c",
    "{{ 7 * 7 }}{% raw %}",
    "null",
    "🦄👩‍👩‍👧",
    "k" * 4000,
)
"""Keys of messages, and what is in their tags, properties and bodies. A page shows each as it is, and runs none."""


@dataclass(slots=True)
class Known:
    """What one client has done.

    Args:
        sent: messages of each topic that were sent and may be delivered, or wait for their time.
        held: ids of messages that a group was given and has not acknowledged.
        waiting: of each group, how many messages nobody of it was given yet.
        holders: by group, the id of the client that holds them.
        dead: by group, how many messages are dead letters.
        delayed: how many messages wait for their time.
        hostile: ids of messages with hostile strings.
        acked: an id of a message that a group has done.
        blocked: the message group whose first message is held.
    """

    sent: dict[str, int] = field(default_factory=dict)
    held: dict[str, list[str]] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    delayed: int = 0
    hostile: list[str] = field(default_factory=list)
    acked: str = ""
    blocked: str = ""

    def as_json(self) -> dict[str, Any]:
        """As it goes from one process to another."""
        return asdict(self)

    @classmethod
    def of(cls, reported: dict[str, Any]) -> Self:
        """The reverse of `as_json`."""
        return cls(**reported)


TYPES: Final = {
    "Orders": "NORMAL",
    "Payments": "NORMAL",
    "Refused": "NORMAL",
    "Hostile": "NORMAL",
    "Steps": "FIFO",
    "Reminders": "DELAY",
    "Transfers": "TRANSACTION",
    "Urgent": "PRIORITY",
    "Chats": "LITE",
    "Anything": "MIXED",
}
"""Topic -> its type: one of each."""

GROUPS: Final[Mapping[str, Mapping[str, object]]] = {
    "billing": {},
    "ledger": {},
    "fussy": {"max_attempts": 1},
    "steps": {"fifo": True},
    "undecided": {},
}
"""Group -> what its creation says besides."""
