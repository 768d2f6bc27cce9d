"""Schema of the values of helm/popwheel, except `config`, which has the services' own options.

`helm/popwheel/values.yaml` holds the defaults and says what each is for; `make docs` makes values.schema.json of both.
What Kubernetes itself defines (affinity, tolerations ...) is as its own schema has it, named by `kubernetes`.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, create_model

from popwheel_common.contract.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS, TopicSetting
from popwheel_controller.options import (
    ATTEMPTS_MAX,
    BACKOFF_MS_MAX,
    BACKOFF_STEPS_MAX,
    MULTIPLIER_MAX,
    QUEUES_MAX,
    GroupDefaults,
    TopicDefaults,
)

DECLARED_MAX = 1000
"""Topics, and as many groups, of one release: Helm keeps all of a release in one Secret."""

Label = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$")]
"""A name that still fits when Kubernetes puts hashes and numbers behind it."""
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?$")]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[int, Field(ge=1, le=86_400)]
Duration = Annotated[str, Field(pattern=r"^([0-9]+(ms|s|m|h))+$")]
Share = int | Annotated[str, Field(pattern=r"^([0-9]+%)?$")]
"""A number, or of all; empty text for none."""
Texts = dict[str, str]
Object = dict[str, Any]
"""A mapping of Kubernetes, whatever it holds."""

KUBERNETES = "kubernetes"
"""Stands in a model's schema where what Kubernetes defines goes."""


def kubernetes(name: str) -> WithJsonSchema:
    """The schema of what Kubernetes defines itself, such as `core.v1.Toleration`."""
    return WithJsonSchema({KUBERNETES: f"io.k8s.api.{name}"})


Affinity = Annotated[Object, kubernetes("core.v1.Affinity")]
Container = Annotated[Object, kubernetes("core.v1.Container")]
ContainerSecurity = Annotated[Object, kubernetes("core.v1.SecurityContext")]
DnsConfig = Annotated[Object, kubernetes("core.v1.PodDNSConfig")]
EnvFrom = Annotated[Object, kubernetes("core.v1.EnvFromSource")]
EnvVariable = Annotated[Object, kubernetes("core.v1.EnvVar")]
HostAlias = Annotated[Object, kubernetes("core.v1.HostAlias")]
NetworkPeer = Annotated[Object, kubernetes("networking.v1.NetworkPolicyPeer")]
PodSecurity = Annotated[Object, kubernetes("core.v1.PodSecurityContext")]
PullSecret = Annotated[Object, kubernetes("core.v1.LocalObjectReference")]
Resources = Annotated[Object, kubernetes("core.v1.ResourceRequirements")]
SpreadConstraint = Annotated[Object, kubernetes("core.v1.TopologySpreadConstraint")]
Toleration = Annotated[Object, kubernetes("core.v1.Toleration")]
Volume = Annotated[Object, kubernetes("core.v1.Volume")]
VolumeMount = Annotated[Object, kubernetes("core.v1.VolumeMount")]


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


def _setting(setting: TopicSetting) -> tuple[Any, Any]:
    if setting.words:
        return Literal[setting.words], Field(default=setting.default)
    return int, Field(default=0, ge=0)


if TYPE_CHECKING:
    _TopicSettings = _Values
else:
    fields = {each.resource_key: _setting(each) for each in TOPIC_SETTINGS}
    _TopicSettings = create_model("_TopicSettings", __base__=_Values, **fields)


class Topic(_TopicSettings):
    """A topic that is to be there."""

    name: Annotated[str, Field(pattern=rf"^[%A-Za-z0-9_-]{{1,{TOPIC_LENGTH_MAX}}}$")]
    type: Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY"] = "NORMAL"
    queues: int = Field(ge=1, le=QUEUES_MAX, default_factory=lambda: TopicDefaults().queues)


class ExponentialBackoff(_Values):
    """Waits that grow."""

    initialMs: int = Field(ge=1, le=BACKOFF_MS_MAX)
    maxMs: int = Field(ge=1, le=BACKOFF_MS_MAX)
    multiplier: float = Field(ge=1, le=MULTIPLIER_MAX)


class ConsumerGroup(_Values):
    """A consumer group that is to be there."""

    name: Annotated[str, Field(pattern=rf"^[%A-Za-z0-9_-]{{1,{GROUP_LENGTH_MAX}}}$")]
    maxAttempts: int = Field(ge=1, le=ATTEMPTS_MAX, default_factory=lambda: GroupDefaults().max_attempts)
    fifo: bool = False
    backoffMs: list[Annotated[int, Field(ge=0, le=BACKOFF_MS_MAX)]] = Field(
        min_length=1, max_length=BACKOFF_STEPS_MAX, default_factory=lambda: GroupDefaults().backoff_ms
    )
    exponentialBackoff: ExponentialBackoff | None = None


class Image(_Values):
    repository: Annotated[str, Field(min_length=1)]
    tag: str
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
    pullPolicy: Literal["Always", "IfNotPresent", "Never"]
    pullSecrets: list[PullSecret]


class DisruptionBudget(_Values):
    """The pods that a drain may take at a time: a number, or a share such as 25%."""

    enabled: bool
    maxUnavailable: Share
    minAvailable: Share


class Pod(_Values):
    """Values of pods of every kind."""

    resources: Resources
    podAnnotations: Texts
    podLabels: Texts
    nodeSelector: Texts
    tolerations: list[Toleration]
    affinity: Affinity
    topologySpreadConstraints: list[SpreadConstraint]
    priorityClassName: str
    podSecurityContext: PodSecurity
    securityContext: ContainerSecurity
    dnsPolicy: Literal["", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]
    dnsConfig: DnsConfig
    hostAliases: list[HostAlias]
    extraEnv: list[EnvVariable]
    envFrom: list[EnvFrom]
    extraVolumes: list[Volume]
    extraVolumeMounts: list[VolumeMount]
    initContainers: list[Container]
    sidecars: list[Container]
    podDisruptionBudget: DisruptionBudget


class Autoscaling(_Values):
    enabled: bool
    minReplicas: Annotated[int, Field(ge=1)]
    maxReplicas: Annotated[int, Field(ge=1)]
    targetCPUUtilizationPercentage: Annotated[int, Field(ge=1, le=1000)]


class ProxyService(_Values):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    port: Annotated[int, Field(ge=1, le=65535)]
    nodePort: Port
    loadBalancerIP: str
    loadBalancerClass: str
    loadBalancerSourceRanges: list[str]
    externalTrafficPolicy: Literal["", "Cluster", "Local"]
    internalTrafficPolicy: Literal["", "Cluster", "Local"]
    trafficDistribution: Literal["", "PreferClose", "PreferSameZone", "PreferSameNode"]
    annotations: Texts
    labels: Texts


class Advertised(_Values):
    host: str
    port: Port


class Issued(_Values):
    """A certificate by cert-manager."""

    enabled: bool
    issuerRef: Texts


class CertManager(Issued):
    dnsNames: list[str]


class Tls(_Values):
    existingSecret: str
    certManager: CertManager


class InternalTls(_Values):
    enabled: bool
    mode: Literal["accept", "prefer", "demand"]
    existingSecret: str
    certManager: Issued


class ServicesTls(_Values):
    internal: InternalTls


class Access(_Values):
    usersSecret: str
    tokensSecret: str
    consoleSecret: str
    consoleUsers: bool
    checkSecret: str


class ProxyOverrides(_Values):
    """Values that are laid over the objects of the proxies, by kind."""

    Deployment: Object = {}
    Service: Object = {}
    PodDisruptionBudget: Object = {}
    HorizontalPodAutoscaler: Object = {}
    Certificate: Object = {}


class Overrides(_Values):
    """The same of brokers and controllers."""

    StatefulSet: Object = {}
    Service: Object = {}
    PodDisruptionBudget: Object = {}


class Proxy(Pod):
    replicas: Annotated[int, Field(ge=1, le=1000)]
    workers: Annotated[int, Field(ge=1, le=64)]
    autoscaling: Autoscaling
    service: ProxyService
    advertised: Advertised
    tls: Tls
    terminationGracePeriodSeconds: Seconds
    overrides: ProxyOverrides


class Retention(_Values):
    whenDeleted: Literal["Retain", "Delete"]
    whenScaled: Literal["Retain", "Delete"]


class Persistence(_Values):
    enabled: bool
    size: Quantity
    storageClass: str
    accessModes: list[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]]
    annotations: Texts
    labels: Texts
    retention: Retention


class Broker(Pod):
    groups: Annotated[list[Label], Field(min_length=1, max_length=256)]
    replicas: Annotated[int, Field(ge=1, le=16)]
    persistence: Persistence
    terminationGracePeriodSeconds: Seconds
    overrides: Overrides


class Controller(Pod):
    replicas: Annotated[int, Field(ge=1, le=8)]
    overrides: Overrides


Host = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""A name as Ingress and HTTPRoute have it."""


class AdminIngress(_Values):
    enabled: bool
    className: str
    hosts: list[Host]
    tlsSecret: str
    annotations: Texts
    labels: Texts


class AdminRoute(_Values):
    enabled: bool
    parentRefs: list[Object]
    hostnames: list[Host]
    annotations: Texts
    labels: Texts


class Admin(_Values):
    """The ways from outside to the admin API."""

    ingress: AdminIngress
    httpRoute: AdminRoute


class Global(BaseModel):
    """Global values of parent charts; other keys are for other charts."""

    model_config = ConfigDict(extra="allow", strict=True)

    imageRegistry: Annotated[str, Field(pattern=r"^([^/ ]+(/[^/ ]+)*/?)?$")]
    imagePullSecrets: list[PullSecret | str]


class ServiceAccount(_Values):
    create: bool
    name: str
    annotations: Texts


class NetworkPolicy(_Values):
    enabled: bool
    clientsFrom: list[NetworkPeer]
    metricsFrom: list[NetworkPeer]
    adminFrom: list[NetworkPeer]


class ServiceMonitor(_Values):
    enabled: bool
    interval: Duration
    labels: Texts


class Rules(_Values):
    enabled: bool
    labels: Texts
    runbookBase: Annotated[str, Field(pattern=r"^([^ ]+/)?$")]


class Dashboards(_Values):
    enabled: bool
    labels: Texts
    annotations: Texts


class Metrics(_Values):
    serviceMonitor: ServiceMonitor
    rules: Rules
    dashboards: Dashboards


class OwnRedis(_Values):
    enabled: bool
    image: str
    resources: Resources
    tolerations: list[Toleration]


class Redis(_Values):
    url: Annotated[str, Field(pattern=r"^(rediss?://.+)?$")]
    existingSecret: str
    own: OwnRedis


class SparkApplication(_Values):
    """An application. It has a name, an image and a file at least; the templates know what the rest is if it is left
    out.
    """

    name: Label
    image: Annotated[str, Field(min_length=1)]
    file: Annotated[str, Field(min_length=1)]
    arguments: list[str] = []
    conf: Texts = {}
    schedule: str = ""
    master: str = "local[*]"
    sparkVersion: str = "4.3.0"
    serviceAccount: str = "spark"
    user: Annotated[int, Field(ge=1)] = 185
    driver: Object = {}
    executor: Object = {}
    resources: Resources = {}


class Checkpoint(_Values):
    """Place of a stream's checkpoint: exactly one of a URL, a size, and a claim, which the templates demand."""

    url: str = ""
    size: Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?[KMGTPE]i?)?$")] = ""
    storageClass: str = ""
    existingClaim: str = ""


class SparkStream(_Values):
    """A stream. It has a name, an image, a file and a checkpoint at least."""

    name: Label
    image: Annotated[str, Field(min_length=1)]
    file: Annotated[str, Field(min_length=1)]
    checkpoint: Checkpoint
    arguments: list[str] = []
    conf: Texts = {}
    master: str = "local[*]"
    stopped: bool = False
    serviceAccount: str = ""
    user: Annotated[int, Field(ge=1)] = 185
    resources: Resources = {}
    env: list[EnvVariable] = []
    envFrom: list[EnvFrom] = []
    nodeSelector: Texts = {}
    tolerations: list[Toleration] = []
    affinity: Affinity = {}


class Spark(_Values):
    applications: list[SparkApplication]
    streams: list[SparkStream]


class ChartValues(_Values):
    """Values of the chart but `config`."""

    for_all: Global = Field(alias="global")
    image: Image
    topics: Annotated[list[Topic], Field(max_length=DECLARED_MAX)]
    consumerGroups: Annotated[list[ConsumerGroup], Field(max_length=DECLARED_MAX)]
    nameOverride: str
    fullnameOverride: str
    clusterDomain: Annotated[str, Field(min_length=1)]
    commonLabels: Texts
    commonAnnotations: Texts
    proxy: Proxy
    broker: Broker
    controller: Controller
    tls: ServicesTls
    access: Access
    admin: Admin
    serviceAccount: ServiceAccount
    networkPolicy: NetworkPolicy
    metrics: Metrics
    redis: Redis
    spark: Spark
    diagnosticMode: bool
    extraObjects: list[Object | str]
