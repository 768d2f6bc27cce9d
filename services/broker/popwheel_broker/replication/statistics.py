"""Counters of replication, as plain numbers; `metrics.py` shows them."""

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicationStatistics:
    """Counts of one process, over all its roles.

    Args:
        sent_bytes: of the log, to slaves.
        sent_chunks: pieces they went in.
        resent_bytes: of those, what the same slave had been sent before.
        received_bytes: of the log, from masters.
        repeated_bytes: of those, bytes that had been received before, and were skipped.
        cut_bytes: of this log that were dropped because it parted from its master's.
        checkpoints_sent: slaves that had to begin anew.
        checkpoints_taken: how often this one had to.
        checks_failed: records that were damaged: received so, or found so in this log.
        repaired_records: damaged records that were taken from another replica.
        repaired_bytes: of those.
        irreparable: how often a damaged record could be had from no other replica.
        streams_broken: streams from or to another replica that ended other than by its word.
        set_changes: of the sync-state set that this master asked for and got.
        refused_followers: slaves that were not let in, because of a limit.
        window_waits: how often a slave had the whole window under way to it, so that it was sent nothing.
        sync_waits: how often this slave took no more until its device had caught up.
    """

    sent_bytes: int = 0
    sent_chunks: int = 0
    resent_bytes: int = 0
    received_bytes: int = 0
    repeated_bytes: int = 0
    cut_bytes: int = 0
    checkpoints_sent: int = 0
    checkpoints_taken: int = 0
    checks_failed: int = 0
    repaired_records: int = 0
    repaired_bytes: int = 0
    irreparable: int = 0
    streams_broken: int = 0
    set_changes: int = 0
    refused_followers: int = 0
    window_waits: int = 0
    sync_waits: int = 0
