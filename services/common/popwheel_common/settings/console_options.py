"""The console that controllers serve, and who may log in to it (`console.*`)."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

RoleName = Literal["read", "read+bodies", "operate", "operate+bodies", "administer"]


def _http_url(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("must begin with http:// or https://")
    return url.rstrip("/")


Url = Annotated[str, AfterValidator(_http_url)]
"""URL for HTTP without a `/` at its end; or empty."""


class OidcOptions(BaseModel):
    """Login by an OpenID Connect provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: Url = Field(
        default="",
        description="Its address, as it calls itself: below it is /.well-known/openid-configuration. Empty: nobody "
        "logs in that way. It needs console.url, and the extra: pip install 'popwheel[oidc]'.",
    )
    client_id: str = Field(default="", description="Of the console at the provider.")
    client_secret_file: str = Field(
        default="", description="File of the client's secret. Empty: it is a public client, which PKCE protects."
    )
    scopes: str = Field(default="openid profile email", description="What is asked for, with blanks between.")
    name_claim: str = Field(
        default="preferred_username", description="Claim that has the name by which the log of changes calls a person."
    )
    role_claim: str = Field(
        default="groups", description="Claim that has a value, or a list of values, by which roles are given."
    )
    roles: dict[str, RoleName] = Field(
        default={},
        description="Value of the claim: role. Of several the greatest counts. Who has none of them is not let in.",
    )


class ConsoleOptions(BaseModel):
    """Pages for browsers, beside the admin API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(
        default=True,
        description="Whether the port of the admin API serves the console, at `/`. Without it the API stays.",
    )
    users_file: str = Field(
        default="",
        description="File of users who may log in, one a line: NAME ROLE HASH, as `popwheel console password` prints "
        "it. A changed file is taken over without a restart. Nobody has to log in where there is no such file, no "
        "token (access.token_file) and no OIDC.",
    )
    secret_file: str = Field(
        default="",
        description="File of at least 32 bytes with which sessions are signed; give the same to all controllers of a "
        "cluster. Empty: made anew at each start, so a restart logs everybody out.",
    )
    url: Url = Field(
        default="",
        description="Address at which browsers reach the console, if it is another one than they ask for: behind an "
        "Ingress, or with OIDC. If it begins with https://, cookies go over TLS only.",
    )
    idle_ms: int = Field(
        default=1_800_000,
        ge=60_000,
        le=86_400_000,
        description="A session ends if no page is opened for so long. Pages that refresh themselves do not count.",
    )
    session_ms: int = Field(
        default=43_200_000, ge=60_000, le=604_800_000, description="A session ends so long after the login."
    )
    oidc: OidcOptions = OidcOptions()
