"""The broker's settings (`broker.*`)."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from popwheel_common.contract.names import SHORT_NAME_PATTERN

_MEBIBYTE = 1024 * 1024


class LogOptions(BaseModel):
    """The commit log and its consume queues."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    segment_bytes: int = Field(
        default=256 * _MEBIBYTE,
        ge=4096,
        le=4096 * _MEBIBYTE,
        description="A segment file of the commit log takes no further record past this size.",
    )
    index_entries_max: int = Field(
        default=500_000,
        ge=2,
        le=10_000_000,
        description="Index files of the consume queues that would hold more entries together are not merged.",
    )
    queue_entries_in_memory: int = Field(
        default=1024,
        ge=0,
        le=1_000_000,
        description="Saved entries of a consume queue that stay in memory while messages come into it.",
    )
    queues_max: int = Field(
        default=1_000_000,
        ge=1,
        le=10_000_000,
        description="Consume queues at the most; past it, sends to further ones are refused.",
    )


class RetentionOptions(BaseModel):
    """Options for retention. Whole segments are deleted, the oldest first, never one that is still needed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hours: float = Field(default=72.0, gt=0, le=24 * 3650, description="Messages older than this are deleted.")
    disk_used_share_max: float = Field(
        default=0.85, gt=0, le=1, description="Above this share of the disk, the oldest are deleted before their time."
    )
    interval_ms: int = Field(
        default=10_000,
        ge=10,
        le=3_600_000,
        description="How often the age of segments and the use of the disk are checked.",
    )


class PopOptions(BaseModel):
    """Options for deliveries: how long messages are hidden from other consumers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stay_ms: int = Field(
        default=10_000,
        ge=0,
        le=3_600_000,
        description="How long an open delivery holds up its group's committed offset.",
    )
    buffer_deliveries_max: int = Field(
        default=200_000, ge=1, le=10_000_000, description="Deliveries that may hold up committed offsets at once."
    )
    open_messages_max: int = Field(
        default=2_000_000,
        ge=1,
        le=100_000_000,
        description="Messages delivered and not yet acknowledged; past it no more are delivered.",
    )
    held_messages_max: int = Field(
        default=400_000,
        ge=16,
        le=100_000_000,
        description="Messages of FIFO groups that were read and wait for others of their message group; past it, no "
        "more of the queue is read for the group.",
    )
    events_max: int = Field(
        default=50_000,
        ge=16,
        le=10_000_000,
        description="Deliveries and their ends that are kept in memory for those who ask what happened to a message; "
        "the oldest are dropped.",
    )
    scan_entries_max: int = Field(
        default=4096, ge=16, le=1_000_000, description="Entries one pop looks at before it answers, for a rare filter."
    )
    response_bytes_max: int = Field(
        default=16 * _MEBIBYTE, ge=1024, le=1024 * _MEBIBYTE, description="Bytes of messages in one answer."
    )
    priority_wait_ms: int = Field(
        default=30_000,
        ge=0,
        le=7 * 24 * 3_600_000,
        description="How long messages wait for those of a higher priority; then up to half of each pop is theirs.",
    )
    progress_max: int = Field(
        default=4_000_000,
        ge=16,
        le=100_000_000,
        description="Pairs of a group and a queue that it has read, at the most. A group has no more than are free; "
        "past nine tenths there are none for a new group.",
    )
    rewrite_after_records: int = Field(
        default=200_000,
        ge=16,
        le=10_000_000,
        description="Newer records in its revive queue after which an open delivery is rewritten at the queue's end.",
    )
    notify_interests_max: int = Field(
        default=100_000, ge=1, le=10_000_000, description="Interests in arriving messages that proxies may register."
    )
    notify_filter_bytes_max: int = Field(
        default=64 * _MEBIBYTE,
        ge=1024,
        le=16 * 1024 * _MEBIBYTE,
        description="Bytes that the filters of these interests may take in memory.",
    )
    pulls_waiting_max: int = Field(
        default=50_000, ge=1, le=10_000_000, description="Pulls that may wait for a message; then they are refused."
    )


_DAY_MS = 24 * 3_600_000
_SLOT_MS = 1000


class TimerOptions(BaseModel):
    """Delayed messages (docs/use/delayed.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay_ms_max: int = Field(
        default=40 * _DAY_MS, ge=1000, le=49 * _DAY_MS, description="How far ahead a delivery time may lie."
    )
    slots: int = Field(
        default=14 * 24 * 3600, ge=16, le=14 * 24 * 3600, description="Slots of the timer wheel, of one second each."
    )
    roll_window_ms: int = Field(
        default=0,
        ge=0,
        le=10 * _DAY_MS,
        description="A message due later than this is appended anew on its way, so that retention does not reach it. "
        "0: two days, or two thirds of a retention that is shorter than three.",
    )
    log_file_bytes: int = Field(
        default=100 * _MEBIBYTE, ge=4096, le=1024 * _MEBIBYTE, description="Size of one file of the timer log."
    )
    flush_interval_ms: int = Field(
        default=1000, ge=10, le=60_000, description="How often wheel, timer log and their checkpoint are saved."
    )
    clean_interval_ms: int = Field(
        default=30_000, ge=10, le=3_600_000, description="How often files of the timer log are deleted that are done."
    )
    timers_max: int = Field(
        default=50_000_000, ge=1, le=1_000_000_000, description="Delayed messages that may be pending; then refused."
    )
    timers_per_slot_max: int = Field(
        default=200_000, ge=1, le=10_000_000, description="Messages that may be due within one second; then refused."
    )
    stage_entries_max: int = Field(
        default=4096, ge=1, le=1_000_000, description="Entries that may wait before each of the timer's stages."
    )
    recall: bool = Field(default=True, description="Whether delayed messages can be recalled.")
    recalls_max: int = Field(
        default=200_000, ge=1, le=10_000_000, description="Recalls of messages not due yet that are remembered."
    )


class TransactionOptions(BaseModel):
    """Transactions (docs/use/transactions.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    open_max: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Transactions that may be open; then half messages are refused.",
    )
    first_check_ms: int = Field(
        default=6_000,
        ge=10,
        le=3_600_000,
        description="After this time a half message's senders are asked how its transaction ended, unless it says "
        "another one itself.",
    )
    check_interval_ms: int = Field(
        default=30_000, ge=10, le=3_600_000, description="After this time they are asked again."
    )
    checks_max: int = Field(
        default=15, ge=1, le=1000, description="They are asked so often; then the message is rolled back."
    )


class LiteOptions(BaseModel):
    """Lite topics (docs/use/lite.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics_max: int = Field(
        default=2_000_000,
        ge=1,
        le=10_000_000,
        description="Lite topics at the most, of which those of one topic may be no more than are free: half, if it is "
        "the only one. Past it, no more are made.",
    )
    subscriptions_max: int = Field(
        default=2_000_000,
        ge=1,
        le=100_000_000,
        description="Pairs of a client and a lite topic that it reads, at the most; a client counts as one by itself.",
    )
    client_idle_ms: int = Field(
        default=90_000,
        ge=100,
        le=3_600_000,
        description="A client that is idle for so long reads no lite topics any more, until it subscribes again.",
    )


class ReplicationOptions(BaseModel):
    """Settings of replication within a broker group; what no operator sets is `replication/constants.py`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    removed_names: ClassVar[tuple[str, ...]] = (
        "heartbeat_ms",
        "silence_ms_max",
        "joining_ms_max",
        "joining_bytes",
        "watermark_ms",
        "chunk_bytes",
        "coalesce_bytes",
        "window_bytes",
        "unsynced_bytes_max",
        "followers_max",
        "checkpoint_entries_max",
        "repair_timeout_ms",
    )
    """Settings of before, refused with a sentence that says so (`popwheel_common.settings.config`)."""

    ack_mode: Literal["sync_state_set", "master"] = Field(
        default="sync_state_set",
        description="Who must have a message before its send is answered. sync_state_set: every replica in the set. "
        "master: the master alone, which is faster; what a failover may lose then is shown in metrics.",
    )
    min_in_sync_replicas: int = Field(
        default=1, ge=1, le=16, description="While fewer replicas than this are in the set, sends are refused."
    )
    lag_ms_max: int = Field(
        default=3000,
        ge=100,
        le=600_000,
        description="A replica that has been behind for so long leaves the sync-state set.",
    )
    absence_ms_max: int = Field(
        default=500,
        ge=10,
        le=600_000,
        description="A replica whose stream is broken for so long leaves the sync-state set.",
    )
    leaving_ms_max: int = Field(
        default=6000,
        ge=100,
        le=3_600_000,
        description="How long a replica that is to shut down waits until its group can do without it.",
    )


class BrokerOptions(BaseModel):
    """Settings of the service that stores messages and knows who holds which."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        default="broker-0", pattern=SHORT_NAME_PATTERN, description="Name of the broker in routes and handles."
    )
    replica: int = Field(
        default=0, ge=0, le=15, description="Number of this replica among those that hold the log of one broker name."
    )
    flush: Literal["sync", "async"] = Field(
        default="sync",
        description="sync: a send is answered when it is on the device. async: when it is in the page cache.",
    )
    flush_interval_ms: int = Field(
        default=500,
        ge=1,
        le=60_000,
        description="How often sends with flush async, and all acknowledgements, are synced.",
    )
    checkpoint_interval_ms: int = Field(
        default=5000,
        ge=10,
        le=600_000,
        description="How often progress is saved; bounds the part of the log that a restart reads.",
    )
    checkpoint_bytes: int = Field(
        default=128 * _MEBIBYTE,
        ge=4096,
        le=16 * 1024 * _MEBIBYTE,
        description="Bytes of log after which progress is saved early; bounds what a restart reads of the log.",
    )
    checkpoint_changes_bytes: int = Field(
        default=_MEBIBYTE,
        ge=0,
        le=1024 * _MEBIBYTE,
        description="Bytes of changes that the file of progress takes at least before it is rewritten; it takes as "
        "many as its whole content has, if that is more.",
    )
    disk_full_share: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Above this share of the disk, sends are refused; other calls are served while there is room for "
        "their records.",
    )
    waiting_bytes_max: int = Field(
        default=256 * _MEBIBYTE,
        ge=_MEBIBYTE,
        le=16 * 1024 * _MEBIBYTE,
        description="Bytes of sends that wait for the device; past it sends are refused for the moment.",
    )
    quarantine_max: int = Field(
        default=10_000,
        ge=1,
        le=100_000,
        description="Poison messages that the quarantine may hold (docs/operate/messages.md); past it "
        "a record that fails by itself blocks its queue.",
    )
    skip_record: int | None = Field(
        default=None,
        ge=0,
        description="A position in the commit log. The damaged message there, which no replica has whole, is skipped "
        "at the start (docs/operate/alerts.md). It may stay set.",
    )
    log: LogOptions = LogOptions()
    retention: RetentionOptions = RetentionOptions()
    pop: PopOptions = PopOptions()
    timer: TimerOptions = TimerOptions()
    transaction: TransactionOptions = TransactionOptions()
    lite: LiteOptions = LiteOptions()
    replication: ReplicationOptions = ReplicationOptions()
    grpc_host: str = Field(default="127.0.0.1", description="Address the broker listens at when it runs by itself.")
    grpc_port: int = Field(default=8082, ge=0, le=65535, description="Port of its service for proxies.")
    http_port: int = Field(default=8090, ge=0, le=65535, description="Port of health and metrics.")
    advertised_address: str = Field(
        default="", description="host:port at which proxies reach it; empty: as it listens, grpc_host:grpc_port."
    )
    controller: str = Field(
        default="127.0.0.1:8083",
        description="host:port of the controller, when the broker runs by itself; of several, with commas between.",
    )

    @property
    def roll_window_ms(self) -> int:
        """Longest delay of a message that is not appended anew on its way, in milliseconds."""
        if self.timer.roll_window_ms:
            return self.timer.roll_window_ms
        return max(2 * _SLOT_MS, min(2 * _DAY_MS, int(self.retention.hours * 3_600_000 * 2 / 3)))

    @model_validator(mode="after")
    def _check_roll(self) -> Self:
        window_ms, retention_ms = self.timer.roll_window_ms, self.retention.hours * 3_600_000
        if 0 < window_ms < 2 * _SLOT_MS:
            raise ValueError(f"timer.roll_window_ms is {window_ms}; it must be 0 or at least {2 * _SLOT_MS}")
        if window_ms > retention_ms * 0.9:
            raise ValueError(
                f"timer.roll_window_ms is {window_ms}, which is over nine tenths of retention.hours "
                f"({retention_ms:.0f} ms): messages would be deleted before they are due; make it shorter, or 0"
            )
        if self.roll_window_ms > self.timer.slots * _SLOT_MS // 2:
            raise ValueError(
                f"timer.roll_window_ms is {self.roll_window_ms}, which is over half the span of the wheel "
                f"({self.timer.slots} slots of {_SLOT_MS} ms); make it shorter or the wheel larger"
            )
        return self
