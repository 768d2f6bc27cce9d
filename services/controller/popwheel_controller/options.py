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
        description="Queues of a topic that is made without saying how many; one of type PRIORITY has 10.",
    )


class GroupDefaults(BaseModel):
    """Defaults of consumer groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: int = Field(
        default=17,
        ge=1,
        le=ATTEMPTS_MAX,
        description="Deliveries of a message before it goes to the dead letter queue: 16 retries.",
    )
    backoff_ms: list[Annotated[int, Field(ge=0, le=BACKOFF_MS_MAX)]] = Field(
        default=list(RETRY_LADDER_MS),
        min_length=1,
        max_length=BACKOFF_STEPS_MAX,
        description="How long a failed message waits after its 1st, 2nd ... attempt; the last holds for all further.",
    )


class ReplicationOptions(BaseModel):
    """Options for how soon the controller detects failures of replicas and controllers, and acts on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detection_ms: int = Field(
        default=3000,
        ge=100,
        le=600_000,
        description="A replica that does not report for so long is taken for dead; say 2000 at least, four of its "
        "heartbeats.",
    )
    probe_ms: int = Field(
        default=500,
        ge=10,
        le=60_000,
        description="How long a replica whose stream broke may take to answer at its address.",
    )
    hand_over_ms: int = Field(
        default=3000,
        ge=100,
        le=60_000,
        description="How long a master may take to see that its successor has everything.",
    )
    checkpoint_interval_ms: int = Field(
        default=3000, ge=100, le=600_000, description="How often slaves are given the progress of their master."
    )
    checkpoints_at_once_max: int = Field(
        default=32, ge=1, le=1000, description="How many masters are asked for their progress at a time."
    )
    lease_ms: int = Field(
        default=2000,
        ge=100,
        le=600_000,
        description="With several controllers: one that has been silent for so long leads no more.",
    )


class StoreOptions(BaseModel):
    """Options for the store of the controller's state."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["file", "kubernetes"] = Field(
        default="file", description="In a folder, or as resources of the Kubernetes cluster it runs in."
    )
    folder: str = Field(
        default="",
        description="Folder that several controllers of one machine share, of whom one leads; empty: its data folder, "
        "which it has for itself.",
    )
    namespace: str = Field(
        default="", description="Namespace of the Kubernetes resources; empty: that of the controller's own pod."
    )
    page_bytes: int = Field(
        default=65_536,
        ge=64,
        le=262_144,
        description="Topics and groups are stored in pages of about so many bytes; a change writes about half of that, "
        "and now and then a page.",
    )


class ResourceOptions(BaseModel):
    """Topics and consumer groups as resources of Kubernetes, where the state is kept there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    declared_max: int = Field(
        default=2000,
        ge=1,
        le=10_000,
        description="Topics that resources may declare, and as many consumer groups; further ones are not looked at.",
    )
    shown_max: int = Field(
        default=500,
        ge=0,
        le=10_000,
        description="Topics made otherwise that resources show, and as many consumer groups; 0: none.",
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
        description="Characters in the name of a new topic at the most.",
    )
    group_name_length_max: int = Field(
        default=names.GROUP_LENGTH_MAX,
        ge=1,
        le=names.GROUP_LENGTH_MAX,
        description="Characters in the name of a new group at the most.",
    )
    topics_max: int = Field(default=100_000, ge=1, le=1_000_000, description="Topics of the cluster at the most.")
    groups_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Consumer groups of the cluster at the most."
    )
    broker_groups_max: int = Field(
        default=1000, ge=1, le=100_000, description="Broker groups of the cluster at the most."
    )
    deleted_name_rest_ms: int = Field(
        default=10 * _MINUTE_MS,
        ge=0,
        le=7 * 24 * _HOUR_MS,
        description="A topic or group that was deleted by hand is made on first use again only after so long; made by "
        "hand it is at once. 0: at once, too.",
    )
    watcher_updates_max: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Changes held for a slow watcher; past it he gets the whole state anew.",
    )
    watcher_part_names: int = Field(
        default=500,
        ge=1,
        le=10_000,
        description="The whole state is sent in parts of so many topics and groups.",
    )
    changes_waiting_max: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Changes that wait to be saved; past it they are refused."
    )
    grpc_host: str = Field(default="127.0.0.1", description="Address the controller listens at when it runs by itself.")
    grpc_port: int = Field(default=8083, ge=0, le=65535, description="Port of its service for brokers and proxies.")
    advertised_address: str = Field(
        default="",
        description="host:port at which brokers and proxies reach it, as other controllers name it; its listening one "
        "if left out.",
    )
    drills: bool = Field(
        default=False,
        description="The admin API may kill the process of a master on this machine, to see what becomes of it. "
        "`popwheel cluster` sets it.",
    )
    http_host: str = Field(default="127.0.0.1", description="Address of the admin API, health and metrics.")
    http_port: int = Field(default=8080, ge=0, le=65535, description="Port of the admin API, health and metrics.")
