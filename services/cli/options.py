"""The settings of whole processes: one model of everything, so that one file can serve every process of a cluster."""

from pydantic import BaseModel, ConfigDict, Field

from services.broker.options import BrokerOptions
from services.common.logs import LogOptions
from services.common.settings.access_options import AccessOptions
from services.common.settings.tls_options import ClusterTlsOptions
from services.controller.options import ControllerOptions
from services.proxy.options import ProxyOptions


class ClusterOptions(BaseModel):
    """Settings of a process that runs one service; it takes its own part and checks the rest as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proxy: ProxyOptions = ProxyOptions()
    broker: BrokerOptions = BrokerOptions()
    controller: ControllerOptions = ControllerOptions()
    tls: ClusterTlsOptions = ClusterTlsOptions()
    access: AccessOptions = AccessOptions()
    log: LogOptions = LogOptions()


class StandaloneProxyOptions(ProxyOptions):
    """The proxy's settings where all is one process: what is not there is made on first use."""

    auto_create_topics: bool = Field(default=True, description="As elsewhere, but on.")
    auto_create_groups: bool = Field(default=True, description="As elsewhere.")


class StandaloneOptions(ClusterOptions):
    """Settings of `popwheel standalone`."""

    proxy: StandaloneProxyOptions = StandaloneProxyOptions()
