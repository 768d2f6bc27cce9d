"""Login methods of the console."""

from dataclasses import dataclass

from popwheel_common.web.tokens import Tokens
from popwheel_common.web.users import Users
from popwheel_console.login.oidc import Oidc


@dataclass(frozen=True, slots=True)
class LoginMethods:
    """Methods of a login; each is None if it is not configured.

    Args:
        tokens: of the admin API.
        users: with passwords.
        oidc: the provider.
    """

    tokens: Tokens | None = None
    users: Users | None = None
    oidc: Oidc | None = None

    @property
    def are_any(self) -> bool:
        """True if there is a login; if not, the console is open to all."""
        return self.tokens is not None or self.users is not None or self.oidc is not None
