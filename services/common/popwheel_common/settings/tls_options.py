"""TLS between the services of a cluster (`tls.*`)."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ClusterTlsOptions(BaseModel):
    """Options for TLS between controllers, brokers and proxies; clients have `proxy.tls`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate_file: str = Field(
        default="",
        description="PEM file of the certificate chain that this process shows the others, as server and as client; "
        "empty: plain text. Changed files are taken over without a restart.",
    )
    key_file: str = Field(default="", description="PEM file of the private key that belongs to it.")
    authority_file: str = Field(
        default="", description="PEM file of the authorities; whose certificate is by none of them is refused."
    )
    mode: Literal["accept", "prefer", "demand"] | None = Field(
        default=None,
        description="demand, or not given: TLS only. The others are steps towards it for a cluster that runs. accept: "
        "callers come with TLS or without, own calls go without. prefer: the same, own calls go with TLS.",
    )

    @model_validator(mode="after")
    def _all_or_none(self) -> Self:
        files = [self.certificate_file, self.key_file, self.authority_file]
        if any(files) and not all(files):
            raise ValueError("certificate_file, key_file and authority_file belong together: give all three or none")
        if self.mode is not None and not any(files):
            raise ValueError("mode says nothing without certificate_file, key_file and authority_file: give them, too")
        return self
