"""What the values of helm/popwheel may be, but for `config`, which has the services' own options.

`helm/popwheel/values.yaml` holds the defaults and says what each is for; `make docs` makes values.schema.json of both.
What Kubernetes itself defines (affinity, tolerations ...) is left to the API server to check.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.common.contract.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from services.controller.options import (
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
Texts = dict[str, str]
Object = dict[str, Any]
"""As Kubernetes has it."""
Objects = list[Object]


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Topic(_Values):
    """A topic that is to be there."""

    name: Annotated[str, Field(pattern=rf"^[%A-Za-z0-9_-]{{1,{TOPIC_LENGTH_MAX}}}$")]
    type: Literal["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY"] = "NORMAL"
    queues: int = Field(ge=1, le=QUEUES_MAX, default_factory=lambda: TopicDefaults().queues)
    liteExpirationMs: int = Field(default=0, ge=0)


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
    pullSecrets: list[Texts]


class Pod(_Values):
    """What pods of every kind have."""

    resources: Object
    podAnnotations: Texts
    podLabels: Texts
    nodeSelector: Texts
    tolerations: Objects
    affinity: Object
    priorityClassName: str
    extraEnv: Objects
    extraVolumes: Objects
    extraVolumeMounts: Objects
    sidecars: Objects


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
    loadBalancerSourceRanges: list[str]
    annotations: Texts


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
    checkSecret: str


class Proxy(Pod):
    replicas: Annotated[int, Field(ge=1, le=1000)]
    workers: Annotated[int, Field(ge=1, le=64)]
    autoscaling: Autoscaling
    service: ProxyService
    advertised: Advertised
    tls: Tls
    terminationGracePeriodSeconds: Seconds


class Retention(_Values):
    whenDeleted: Literal["Retain", "Delete"]
    whenScaled: Literal["Retain", "Delete"]


class Persistence(_Values):
    enabled: bool
    size: Quantity
    storageClass: str
    accessModes: list[Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]]
    retention: Retention


class Broker(Pod):
    groups: Annotated[list[Label], Field(min_length=1, max_length=256)]
    replicas: Annotated[int, Field(ge=1, le=16)]
    persistence: Persistence
    terminationGracePeriodSeconds: Seconds


class Controller(Pod):
    replicas: Annotated[int, Field(ge=1, le=8)]


class ServiceAccount(_Values):
    create: bool
    name: str
    annotations: Texts


class NetworkPolicy(_Values):
    enabled: bool
    clientsFrom: Objects
    metricsFrom: Objects
    adminFrom: Objects


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
    resources: Object


class Redis(_Values):
    url: Annotated[str, Field(pattern=r"^(rediss?://.+)?$")]
    existingSecret: str
    own: OwnRedis


class SparkApplication(_Values):
    """One has a name, an image and a file at least; the templates know what the rest is if it is left out."""

    name: Label
    image: Annotated[str, Field(min_length=1)]
    file: Annotated[str, Field(min_length=1)]
    arguments: list[str] = []
    conf: Texts = {}
    schedule: str = ""
    master: str = "local[*]"
    sparkVersion: str = "4.0.0"
    serviceAccount: str = "spark"
    user: Annotated[int, Field(ge=1)] = 185
    driver: Object = {}
    executor: Object = {}
    resources: Object = {}


class Spark(_Values):
    applications: list[SparkApplication]


class ChartValues(_Values):
    """All of them but `config`."""

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
    serviceAccount: ServiceAccount
    networkPolicy: NetworkPolicy
    metrics: Metrics
    redis: Redis
    spark: Spark
    diagnosticMode: bool
    extraObjects: list[Object | str]
