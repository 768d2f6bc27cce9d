"""Login by OpenID Connect: the authorization code flow with PKCE, state and nonce (OpenID Connect Core 1.0, RFC 7636).

Authlib talks to the provider and checks its answers; roles are decided here.
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fastapi import Request, Response

from popwheel_common.errors import ConfigurationError, StatusError
from popwheel_common.extras import needs_extra
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.settings.console_options import ConsoleOptions, OidcOptions
from popwheel_common.web.caller import RESERVED_NAMES, RIGHTS, Rights
from popwheel_common.web.signed_callers import OIDC, Identity

CALLBACK: Final = "/login/oidc/callback"
_ALGORITHMS: Final = ("RS256", "PS256", "ES256", "EdDSA", "RS384", "RS512", "ES384", "ES512", "PS384", "PS512")
"""Accepted signatures: no unsigned tokens, and none signed with the client's secret."""
_STRANGE: Final = re.compile(r"[^A-Za-z0-9._@-]")
_NAME_LENGTH_MAX: Final = 64


class Oidc:
    """OpenID Connect provider.

    Args:
        options: of the console.

    Raises:
        ConfigurationError: the options are inconsistent, or the secret cannot be read.
        MissingExtraError: the library is not installed.
    """

    def __init__(self, options: ConsoleOptions) -> None:
        oidc = options.oidc
        if not options.url:
            raise ConfigurationError("console.url", "must say where browsers reach the console: OIDC sends them there")
        if not oidc.client_id:
            raise ConfigurationError("console.oidc.client_id", "must be given together with console.oidc.issuer")
        if not oidc.roles:
            raise ConfigurationError("console.oidc.roles", "must give a role to some value of console.oidc.role_claim")
        with needs_extra("console.oidc.issuer", "must be empty", "oidc"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends a successor of httpx
            from authlib.integrations.starlette_client import OAuth
        self._options = oidc
        self._redirect_url = options.url + CALLBACK
        secret = _secret(oidc.client_secret_file)
        self._client: Any = OAuth().register(
            "popwheel",
            client_id=oidc.client_id,
            client_secret=secret,
            server_metadata_url=f"{oidc.issuer}/.well-known/openid-configuration",
            client_kwargs={
                "scope": oidc.scopes,
                "code_challenge_method": "S256",
                "token_endpoint_auth_method": "client_secret_basic" if secret else "none",
                "timeout": 10,
            },
        )

    async def begin(self, request: Request) -> Response:
        """Redirect a browser to the provider; the request's session has the state until it returns.

        Raises:
            StatusError: the provider cannot be asked.
        """
        try:
            await self._learn()
            answer: Response = await self._client.authorize_redirect(request, self._redirect_url)
        except Exception as error:  # httpx, Authlib and the provider have many errors
            raise _away(error) from error
        return answer

    async def finish(self, request: Request) -> Identity:
        """Return the user that the provider has redirected back.

        Raises:
            StatusError: UNAUTHORIZED: the provider does not confirm a user, or the login did not begin here; FORBIDDEN:
                the user has no role; or the provider cannot be asked.
        """
        import httpx
        from authlib.common.errors import AuthlibBaseError
        from joserfc.errors import JoseError

        try:
            await self._learn()
            token = await self._client.authorize_access_token(request)
        except httpx.HTTPError as error:
            raise _away(error) from error
        except (AuthlibBaseError, JoseError, ValueError, KeyError, TypeError) as error:
            raise StatusError(
                Code.UNAUTHORIZED, f"the provider's answer is not good for a login ({_words(error)}): log in again"
            ) from error
        claims: Mapping[str, Any] = token.get("userinfo") or {}
        if str(claims.get("iss", "")).rstrip("/") != self._options.issuer:
            raise StatusError(Code.UNAUTHORIZED, "the provider's answer is of another issuer: log in again")
        return identity_of(claims, self._options)

    async def _learn(self) -> None:
        """Read the provider's metadata, and accept only asymmetric signatures."""
        offered: dict[str, Any] = await self._client.load_server_metadata()
        kinds = offered.get("id_token_signing_alg_values_supported") or ["RS256"]
        self._client.server_metadata["id_token_signing_alg_values_supported"] = [
            each for each in kinds if each in _ALGORITHMS
        ] or ["RS256"]


def identity_of(claims: Mapping[str, Any], options: OidcOptions) -> Identity:
    """Return the user of an ID token's claims, with the user's rights (pure).

    Raises:
        StatusError: FORBIDDEN: no role is given to any value of the claim.
    """
    name = _STRANGE.sub("_", str(claims.get(options.name_claim) or claims.get("sub") or ""))[:_NAME_LENGTH_MAX]
    if not name or not name[0].isalnum() or name.lower() in RESERVED_NAMES:
        name = f"u_{name}"[:_NAME_LENGTH_MAX]
    values = claims.get(options.role_claim)
    listed = values if isinstance(values, list) else [values]
    given = [RIGHTS[options.roles[each]] for each in listed if isinstance(each, str) and each in options.roles]
    if not given:
        raise StatusError(
            Code.FORBIDDEN,
            f"{name} has no role here: no value of the claim {options.role_claim} stands in console.oidc.roles",
        )
    return Identity(OIDC, name, Rights(max(each.role for each in given), any(each.sees_data for each in given)))


def _secret(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError("console.oidc.client_secret_file", f"cannot read {path}: {error.strerror}") from error


def _away(error: Exception) -> StatusError:
    return StatusError(Code.HA_NOT_AVAILABLE, f"the login's provider cannot be asked now ({_words(error)}): try again")


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
