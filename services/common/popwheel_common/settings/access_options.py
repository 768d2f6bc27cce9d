"""Options for access: clients of the proxies, and callers of the admin API (`access.*`)."""

from pydantic import BaseModel, ConfigDict, Field


class AccessOptions(BaseModel):
    """Users with their rules for clients, and the token of the admin API. All of it is off where it is not given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(
        default="",
        description="YAML or JSON file of users and what each may do; proxies then serve nobody else. Empty: they "
        "serve everybody. A changed file is taken over without a restart.",
    )
    clock_skew_ms: int = Field(
        default=300_000,
        ge=0,
        le=86_400_000,
        description="How far the time that a client signed may be from this machine's, in any time zone if it does "
        "not say which; 0: it is not looked at.",
    )
    client_authority_file: str = Field(
        default="",
        description="PEM file of authorities: a client of a proxy must speak TLS and show a certificate by one of "
        "them. It goes with proxy.tls.certificate_file. Empty: nothing is asked of them.",
    )
    token_file: str = Field(
        default="",
        description="File of the tokens that callers of the admin API must show, one a line: NAME ROLE TOKEN, with "
        "read, operate or administer for ROLE, or a token alone, which may administer. Empty: it serves everybody. A "
        "changed file is taken over without a restart.",
    )
