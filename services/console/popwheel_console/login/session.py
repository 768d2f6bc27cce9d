"""Session of the console in a signed cookie, so that controllers store none."""

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
    """User of the console.

    Args:
        name: shown in the frame; empty without logins.
        authorization: header for the API; empty for none.
        role: of the user.
        sees_data: whether the user may see bodies and properties of messages.
    """

    name: str = ""
    authorization: str = ""
    role: Role = Role.ADMINISTER
    sees_data: bool = True


@dataclass(frozen=True, slots=True)
class Ticket:
    """Content of the cookie.

    Args:
        id: of the session; forms are bound to it.
        began_ms: time of the login, or of the first page.
        renewed_ms: time of the signature.
        identity: the user; None before a login.
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
        """Parse a cookie that was signed here."""
        identity = Identity.of_fields(fields) if "source" in fields else None
        return cls(fields["id"], fields["began"], fields["renewed"], identity)


def new_id() -> str:
    """Return an unguessable id."""
    return base64.urlsafe_b64encode(os.urandom(_ID_BYTES)).decode()
