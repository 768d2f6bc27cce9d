"""Settings of replication (`broker.replication.*`)."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_MEBIBYTE = 1024 * 1024


class ReplicationOptions(BaseModel):
    """How the replicas of a broker group keep the same log."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        description="A replica whose stream has broken and did not come back for so long leaves the sync-state set.",
    )
    joining_ms_max: int = Field(
        default=500,
        ge=10,
        le=60_000,
        description="For so long sends wait for a replica that is about to join the sync-state set.",
    )
    leaving_ms_max: int = Field(
        default=6000,
        ge=100,
        le=3_600_000,
        description="For so long a replica that is asked to end waits until its group can do without it.",
    )
    heartbeat_ms: int = Field(
        default=500, ge=10, le=60_000, description="How often an idle master and its slaves say that they are there."
    )
    silence_ms_max: int = Field(
        default=2000, ge=50, le=600_000, description="A stream on which nothing came for so long is given up."
    )
    watermark_ms: int = Field(
        default=20,
        ge=1,
        le=10_000,
        description="So soon slaves hear what is confirmed, if no records come along that say it.",
    )
    chunk_bytes: int = Field(
        default=_MEBIBYTE, ge=4096, le=4 * _MEBIBYTE, description="Bytes of the log that go in one piece."
    )
    coalesce_bytes: int = Field(
        default=_MEBIBYTE // 4,
        ge=1,
        le=4 * _MEBIBYTE,
        description="While a piece is under way to a slave, less than this waits and goes together.",
    )
    window_bytes: int = Field(
        default=8 * _MEBIBYTE,
        ge=4096,
        le=1024 * _MEBIBYTE,
        description="Bytes of the log that may be under way to one slave.",
    )
    joining_bytes: int = Field(
        default=4 * _MEBIBYTE,
        ge=4096,
        le=1024 * _MEBIBYTE,
        description="A slave that is behind by less may join the sync-state set.",
    )
    unsynced_bytes_max: int = Field(
        default=64 * _MEBIBYTE,
        ge=4096,
        le=16 * 1024 * _MEBIBYTE,
        description="A slave with so much that is not on its device takes no more for the moment.",
    )
    followers_max: int = Field(default=15, ge=1, le=255, description="Slaves that may follow one master.")
    checkpoint_entries_max: int = Field(
        default=5000,
        ge=1,
        le=50_000,
        description="Offsets that go into one part of a checkpoint; more of them go in several.",
    )
    repair_timeout_ms: int = Field(
        default=3000, ge=10, le=60_000, description="How long one replica is waited for when a record is repaired."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.silence_ms_max < 2 * self.heartbeat_ms:
            raise ValueError(
                f"replication.silence_ms_max is {self.silence_ms_max}; it must be at least twice "
                f"replication.heartbeat_ms ({self.heartbeat_ms}), or streams break that are only idle"
            )
        if self.window_bytes < self.chunk_bytes:
            raise ValueError(
                f"replication.window_bytes is {self.window_bytes}; it must be at least "
                f"replication.chunk_bytes ({self.chunk_bytes})"
            )
        if self.joining_bytes > self.window_bytes:
            raise ValueError(
                f"replication.joining_bytes is {self.joining_bytes}; it must not be above "
                f"replication.window_bytes ({self.window_bytes})"
            )
        return self
