"""Answer of the admin API to a page's request (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

NO_LEADER: Final = "HA_NOT_AVAILABLE"


class Row(dict[str, Any]):
    """Object in an answer. A missing field is None, as an older release may not report it."""

    def __missing__(self, name: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Question:
    """Request of a page to the API.

    Args:
        path: below `/api/v1`, its parts quoted.
        query: parameters; empty values are left out.
        method: of HTTP.
        body: of a request that changes something.
    """

    path: str
    query: Mapping[str, str | int | None] = field(default_factory=dict)
    method: str = "GET"
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of the API.

    Args:
        status: of HTTP; 0 if there is none yet.
        body: its fields; empty for a refusal.
        code: of a refusal.
        message: of a refusal, a sentence.
        leader: of a refusal: address of the controller that leads.
    """

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    message: str = ""
    leader: str = ""

    @property
    def is_good(self) -> bool:
        """True if there is something to show."""
        return 200 <= self.status < 300

    @property
    def is_pending(self) -> bool:
        """True if it has not arrived in time."""
        return self.status == 0

    @property
    def is_missing(self) -> bool:
        """True if the API has no such route: it is of another release."""
        return self.status == 404 and self.code == "NOT_FOUND"

    @property
    def why(self) -> str:
        """Reason why there is nothing to show; empty if there is something."""
        if self.is_good:
            return ""
        if self.is_pending:
            return "it has not answered yet"
        if self.is_missing:
            return "this server does not report it"
        return self.message or f"the server answered with status {self.status}"

    def number(self, name: str) -> int | None:
        """Return a whole number; None if it is not known."""
        value = self.body.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a list; empty if there is no such list."""
        value = self.body.get(name)
        return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []

    def text(self, name: str) -> str:
        """Return a text; empty if it is not known."""
        value = self.body.get(name)
        return value if isinstance(value, str) else ""


PENDING: Final = Answer(0)
