"""The names by which a process answers over HTTP, and the number of connections that it takes (`http.*`)."""

import re
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_NAME = r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.?"
_ADDRESS = r"[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*"


def _checked(host: str) -> str:
    if host == "*" or re.fullmatch(_NAME, host):
        return host
    try:
        ip_address(host)
    except ValueError:
        raise ValueError(
            f"{host[:100]!r} is no host: give a name such as mq.example.com, *.example.com for all below it, an "
            "address, or *; without scheme, port, path or brackets"
        ) from None
    return host


AllowedHost = Annotated[
    str, AfterValidator(_checked), Field(json_schema_extra={"pattern": rf"^(\*|{_NAME}|{_ADDRESS})$"})
]
"""A name, names below one, an address, or all."""


class HttpOptions(BaseModel):
    """Health, metrics and the admin API of every process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allowed_hosts: list[AllowedHost] = Field(
        default=[],
        description="Names for which requests are answered, beside addresses, localhost, this machine's name and the "
        "names in the settings: those of a Service or of an Ingress. `*.example.com` stands for all names below it, "
        "`*` for all. Requests for others get status 421, as pages of other sites could send them.",
    )
    connections_max: int = Field(
        default=128,
        ge=4,
        le=10_000,
        description="HTTP connections of a process at the most, and not more than an eighth of the files that it may "
        "have open. One more closes the one that has waited for its client for longest.",
    )
