"""The paces and sizes of replication that no operator sets; the tests and simulators have smaller ones.

Those that an operator sets are in `popwheel_broker.options.ReplicationOptions`. Decision 0039 says why.
"""

from dataclasses import dataclass

_MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConstants:
    """Constants by which the two ends of replication pace each other.

    Args:
        heartbeat_ms: how often an idle master and its slaves say that they are there, and a replica registers.
        silence_ms_max: a stream without a message for so long is closed.
        joining_ms_max: limit of the wait of sends for a replica that is about to join the sync-state set.
        joining_bytes: a slave that is behind by less may join the set.
        watermark_ms: time in which slaves get the high watermark when there are no records to send.
        chunk_bytes: bytes of the log that go in one piece.
        coalesce_bytes: while a piece is under way to a slave, less than this waits and goes together.
        window_bytes: bytes of the log that may be under way to one slave.
        unsynced_bytes_max: a slave with so much that is not on its device takes no more for the moment.
        followers_max: slaves that may follow one master.
        repair_timeout_ms: how long one replica is waited for when a record is repaired.

    Raises:
        ValueError: they contradict each other.
    """

    heartbeat_ms: int = 500
    silence_ms_max: int = 2000
    joining_ms_max: int = 500
    joining_bytes: int = 4 * _MEBIBYTE
    watermark_ms: int = 20
    chunk_bytes: int = _MEBIBYTE
    coalesce_bytes: int = _MEBIBYTE // 4
    window_bytes: int = 8 * _MEBIBYTE
    unsynced_bytes_max: int = 64 * _MEBIBYTE
    followers_max: int = 15
    repair_timeout_ms: int = 3000

    def __post_init__(self) -> None:
        if self.silence_ms_max < 2 * self.heartbeat_ms:
            raise ValueError("silence_ms_max must be at least twice heartbeat_ms, or streams break that are only idle")
        if not self.joining_bytes <= self.window_bytes >= self.chunk_bytes:
            raise ValueError("window_bytes must be at least joining_bytes, and at least chunk_bytes")
