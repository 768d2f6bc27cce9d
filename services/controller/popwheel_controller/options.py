"""The controller's settings (`controller.*`)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.contract import names
from popwheel_common.contract.backoff import RETRY_LADDER_MS

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

BACKOFF_MS_MAX = 7 * 24 * _HOUR_MS
BACKOFF_STEPS_MAX = 64
MULTIPLIER_MAX = 1000
ATTEMPTS_MAX = 1000
QUEUES_MAX = 1024


class TopicDefaults(BaseModel):
    """Defaults of topics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queues: int = Field(
        default=8,
        ge=1,
        le=QUEUES_MAX,
        description="Queues of a topic that is created without a number; a topic of type PRIORITY has 10.",
    )


class GroupDefaults(BaseModel):
    """Defaults of consumer groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: int = Field(
        default=17,
        ge=1,
        le=ATTEMPTS_MAX,
        description="Deliveries of a message before it becomes a dead letter: 16 retries.",
    )
    backoff_ms: list[Annotated[int, Field(ge=0, le=BACKOFF_MS_MAX)]] = Field(
        default=list(RETRY_LADDER_MS),
        min_length=1,
        max_length=BACKOFF_STEPS_MAX,
        description="Wait of a failed message after its 1st, 2nd ... attempt; the last value applies to all others.",
    )


class ReplicationOptions(BaseModel):
    """Options for how soon the controller detects failures of replicas and controllers, and acts on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detection_ms: int = Field(
        default=3000,
        ge=100,
        le=600_000,
        description="A replica that does not report for this long is considered dead; use at least 2000, four "
        "heartbeats.",
    )
    probe_ms: int = Field(
        default=500,
        ge=10,
        le=60_000,
        description="Timeout of the probe at the address of a replica whose stream broke.",
    )
    hand_over_ms: int = Field(
        default=3000,
        ge=100,
        le=60_000,
        description="Time for a master to wait until its successor has the whole log, in a leadership transfer.",
    )
    checkpoint_interval_ms: int = Field(
        default=3000, ge=100, le=600_000, description="Interval of checkpoint sync from masters to their slaves."
    )
    checkpoints_at_once_max: int = Field(
        default=32, ge=1, le=1000, description="Masters whose checkpoints are fetched at the same time."
    )
    lease_ms: int = Field(
        default=2000,
        ge=100,
        le=600_000,
        description="Lease of the leading controller, where there are several: the others take over after it.",
    )


class StoreOptions(BaseModel):
    """Options for the store of the controller's state."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["file", "kubernetes"] = Field(
        default="file", description="In a folder, or as resources of the Kubernetes cluster it runs in."
    )
    folder: str = Field(
        default="",
        description="Folder that several controllers of one machine share; one of them leads. Empty: the data "
        "folder of this controller alone.",
    )
    namespace: str = Field(
        default="", description="Namespace of the Kubernetes resources; empty: that of the controller's own pod."
    )
    page_bytes: int = Field(
        default=65_536,
        ge=64,
        le=262_144,
        description="Size of the pages that store topics and groups, in bytes; a change writes about half of that, and "
        "now and then a whole page.",
    )


class ResourceOptions(BaseModel):
    """Topics and consumer groups as resources of Kubernetes, where the state is kept there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    declared_max: int = Field(
        default=2000,
        ge=1,
        le=10_000,
        description="Limit of topics that resources may declare, and of consumer groups; further ones are ignored.",
    )
    shown_max: int = Field(
        default=500,
        ge=0,
        le=10_000,
        description="Limit of other topics that are shown as resources, and of consumer groups; 0: none.",
    )


class ControllerOptions(BaseModel):
    """Settings of the service that owns topics, groups and the list of brokers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster_name: str = Field(
        default="popwheel",
        pattern=names.SHORT_NAME_PATTERN,
        description="Name of the cluster, fixed when its state is first written; part of the revive topic's name.",
    )
    topic: TopicDefaults = TopicDefaults()
    group: GroupDefaults = GroupDefaults()
    replication: ReplicationOptions = ReplicationOptions()
    store: StoreOptions = StoreOptions()
    resources: ResourceOptions = ResourceOptions()
    topic_name_length_max: int = Field(
        default=names.TOPIC_LENGTH_MAX,
        ge=1,
        le=names.TOPIC_LENGTH_MAX,
        description="Maximum length of the name of a new topic, in characters.",
    )
    group_name_length_max: int = Field(
        default=names.GROUP_LENGTH_MAX,
        ge=1,
        le=names.GROUP_LENGTH_MAX,
        description="Maximum length of the name of a new group, in characters.",
    )
    topics_max: int = Field(default=100_000, ge=1, le=1_000_000, description="Maximum number of topics.")
    groups_max: int = Field(default=10_000, ge=1, le=1_000_000, description="Maximum number of consumer groups.")
    broker_groups_max: int = Field(default=1000, ge=1, le=100_000, description="Maximum number of broker groups.")
    deleted_name_rest_ms: int = Field(
        default=10 * _MINUTE_MS,
        ge=0,
        le=7 * 24 * _HOUR_MS,
        description="How long a topic or group that an operator deleted is not created on first use; an operator may "
        "create it at any time. 0: no such time.",
    )
    watcher_updates_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Changes buffered for a slow watcher; past it the watcher gets the whole state anew.",
    )
    watcher_part_names: int = Field(
        default=500,
        ge=1,
        le=10_000,
        description="Topics and groups in one part of the whole state, as it is sent to watchers.",
    )
    changes_waiting_max: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Changes that may wait to be stored; past it changes are refused.",
    )
    grpc_host: str = Field(
        default="127.0.0.1", description="Address that the controller listens on when it runs by itself."
    )
    grpc_port: int = Field(default=8083, ge=0, le=65535, description="Port of its service for brokers and proxies.")
    advertised_address: str = Field(
        default="",
        description="host:port at which brokers and proxies reach it, advertised by the other controllers; the "
        "listening address if left out.",
    )
    drills: bool = Field(
        default=False,
        description="Whether the admin API may kill the process of a master on this machine, as a drill. "
        "`popwheel cluster` sets it.",
    )
    http_host: str = Field(default="127.0.0.1", description="Address of the admin API, health and metrics.")
    http_port: int = Field(default=8080, ge=0, le=65535, description="Port of the admin API, health and metrics.")
