"""Settings of whole processes: one model of everything, so that one file serves every process of a cluster."""

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from popwheel_broker.options import BrokerOptions
from popwheel_common.logs import LogOptions
from popwheel_common.settings.access_options import AccessOptions
from popwheel_common.settings.console_options import ConsoleOptions
from popwheel_common.settings.http_options import HttpOptions
from popwheel_common.settings.otel_options import OtelOptions
from popwheel_common.settings.tls_options import ClusterTlsOptions
from popwheel_controller.options import ControllerOptions
from popwheel_proxy.options import ProxyOptions


class ChildrenOptions(BaseModel):
    """Settings of a parent of processes: `--workers N`, `popwheel cluster`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    silence_ms_max: int = Field(
        default=10_000,
        ge=3_000,
        le=3_600_000,
        description="A child process that was ready and gives no sign of life for so long is killed and started again. "
        "Each gives one a second.",
    )


class ClusterOptions(BaseModel):
    """Settings of a process that runs one service; it uses its own part, and checks the rest as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proxy: ProxyOptions = ProxyOptions()
    broker: BrokerOptions = BrokerOptions()
    controller: ControllerOptions = ControllerOptions()
    tls: ClusterTlsOptions = ClusterTlsOptions()
    access: AccessOptions = AccessOptions()
    children: ChildrenOptions = ChildrenOptions()
    http: HttpOptions = HttpOptions()
    console: ConsoleOptions = ConsoleOptions()
    otel: OtelOptions = OtelOptions()
    log: LogOptions = LogOptions()
    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _old_names: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def sources(self) -> Mapping[str, str]:
        """Sources of settings that are no defaults, by their keys."""
        return self._sources

    @property
    def old_names(self) -> Mapping[str, str]:
        """Old names of options that were used, and the new ones."""
        return self._old_names

    def from_sources(self, sources: Mapping[str, str], old_names: Mapping[str, str]) -> Self:
        """Return the settings, each with its source."""
        copy = self.model_copy()
        copy._sources, copy._old_names = sources, old_names
        return copy


class StandaloneProxyOptions(ProxyOptions):
    """Settings of the proxy of `popwheel standalone`: topics and groups are created on first use."""

    auto_create_topics: bool = Field(default=True, description="As elsewhere, but on.")
    auto_create_groups: bool = Field(default=True, description="As elsewhere.")


class StandaloneOptions(ClusterOptions):
    """Settings of `popwheel standalone`."""

    proxy: StandaloneProxyOptions = StandaloneProxyOptions()
