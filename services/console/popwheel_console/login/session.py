"""A session of the console, and the cookie that holds it: signed, so no controller keeps any."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from popwheel_common.web.caller import Role
from popwheel_common.web.signed_callers import Identity

_ID_BYTES: Final = 18


@dataclass(frozen=True, slots=True)
class Session:
    """A user of the console.

    Args:
        name: as the frame shows it; empty where nobody logs in.
        authorization: header that is sent to the API; empty for none.
        role: of the user.
        sees_data: may see the bodies and properties of messages.
    """

    name: str = ""
    authorization: str = ""
    role: Role = Role.ADMINISTER
    sees_data: bool = True


@dataclass(frozen=True, slots=True)
class Ticket:
    """The content of the cookie.

    Args:
        id: of the session; forms are bound to it.
        began_ms: when the login was, or the first page.
        renewed_ms: when the cookie was signed.
        identity: who has logged in; None: nobody yet.
    """

    id: str
    began_ms: int
    renewed_ms: int
    identity: Identity | None = None

    def fields(self) -> dict[str, Any]:
        """Return its form in the cookie."""
        who = {} if self.identity is None else self.identity.fields()
        return {"id": self.id, "began": self.began_ms, "renewed": self.renewed_ms, **who}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> "Ticket":
        """Read it back from a cookie that was signed here."""
        identity = Identity.of_fields(fields) if "source" in fields else None
        return cls(fields["id"], fields["began"], fields["renewed"], identity)


def new_id() -> str:
    """An id that nobody can guess."""
    return base64.urlsafe_b64encode(os.urandom(_ID_BYTES)).decode()
