"""Callers of the admin API that the console has let in: it signs who they are, the API looks up what they may do."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from popwheel_common.clock import Clock
from popwheel_common.web.caller import Caller, Rights, Role
from popwheel_common.web.signatures import Signatures
from popwheel_common.web.tokens import Tokens
from popwheel_common.web.users import Users

_SCHEME: Final = "Bearer pws."
_GOOD_S: Final = 120
"""The console signs for each request anew."""

TOKEN: Final = "token"
USER: Final = "user"
OIDC: Final = "oidc"


class Identity(NamedTuple):
    """Somebody who has logged in.

    Args:
        source: `token`, `user` or `oidc`: what has vouched for the name.
        name: of the token or user.
        rights: as they were at the login. Those of tokens and users are looked up anew.
    """

    source: str
    name: str
    rights: Rights

    def fields(self) -> dict[str, Any]:
        """Its form in a signed text."""
        return {
            "source": self.source,
            "name": self.name,
            "role": self.rights.role.name,
            "bodies": self.rights.sees_data,
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> "Identity":
        """Read it back from a text that was signed."""
        return cls(fields["source"], fields["name"], Rights(Role[fields["role"]], fields["bodies"]))


class SignedCallers:
    """Signs headers, and reads them.

    Args:
        secret: of all controllers of a cluster.
        tokens: those of the admin API, which are good for a login, too; None if there are none.
        users: of the console; None if there is no file of them.
        clock: the wall clock.
    """

    def __init__(self, secret: bytes, tokens: Tokens | None, users: Users | None, clock: Clock) -> None:
        self._signatures = Signatures(secret, "caller", clock)
        self._tokens = tokens
        self._users = users

    def rights(self, identity: Identity) -> Rights | None:
        """Return the caller's current rights; None once the name is no longer valid."""
        if identity.source == TOKEN:
            return None if self._tokens is None else self._tokens.rights(identity.name)
        if identity.source == USER:
            user = None if self._users is None else self._users.get(identity.name)
            return None if user is None else user.rights
        return identity.rights

    def header(self, identity: Identity, address: str) -> str:
        """Return the header `authorization` of a request to the API.

        Args:
            identity: on whose behalf.
            address: of the browser.
        """
        return _SCHEME + self._signatures.sign({**identity.fields(), "address": address})

    @staticmethod
    def is_signed(authorization: str) -> bool:
        """Return whether a header looks like one of these."""
        return authorization.startswith(_SCHEME)

    def caller(self, authorization: str) -> Caller | None:
        """Return the caller that a header names; None if it is no good one (any more)."""
        fields = self._signatures.read(authorization.removeprefix(_SCHEME), _GOOD_S)
        if fields is None:
            return None
        identity = Identity.of_fields(fields)
        rights = self.rights(identity)
        return None if rights is None else Caller(identity.name, rights.role, rights.sees_data, fields["address"])
