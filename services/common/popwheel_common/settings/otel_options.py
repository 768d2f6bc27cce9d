"""Options for OpenTelemetry's collectors, for proxies and their clients (`otel.*`)."""

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")


class OtelOptions(BaseModel):
    """Traces of messages, and metrics of clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    traces: bool = Field(
        default=False,
        description="Whether sends and deliveries make spans in the traces of their messages; needs the extra `otel`. "
        "Variables `OTEL_...` say where spans go.",
    )
    client_metrics_endpoint: str = Field(
        default="",
        description="host:port of a collector to which clients send their own metrics; empty: they send none.",
    )

    @field_validator("client_metrics_endpoint")
    @classmethod
    def _is_host_and_port(cls, value: str) -> str:
        if value:
            host, _, port = value.rpartition(":")
            is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
            if not (is_port and _HOST.fullmatch(host)):
                raise ValueError("must be host:port, such as collector.example.com:4317 or [::1]:4317, without http://")
        return value
