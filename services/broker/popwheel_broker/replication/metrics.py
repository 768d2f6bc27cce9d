"""Metrics of replication; the leader, and the log's end, are shown beside them (`broker.replica_metrics`)."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from popwheel_broker.replication.replication_master import ReplicationMaster
from popwheel_broker.replication.replication_slave import ReplicationSlave
from popwheel_broker.replication.statistics import ReplicationStatistics


class ReplicationCollector(Collector):
    """Reads the state of replication when it is scraped.

    Args:
        registry: where it registers itself.
        statistics: what was counted.
        master: this replica's part as a master, if it leads.
        slave: its part as a slave, if it follows.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        statistics: ReplicationStatistics,
        master: Callable[[], ReplicationMaster | None],
        slave: Callable[[], ReplicationSlave | None],
    ) -> None:
        self._statistics = statistics
        self._master = master
        self._slave = slave
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of replication."""
        yield from self._counts()
        yield from self._of_master(self._master())
        yield from self._of_slave(self._slave())

    def _counts(self) -> Iterator[Metric]:
        counts = self._statistics
        for name, text, value in (
            ("sent_bytes", "Bytes of the log sent to slaves.", counts.sent_bytes),
            ("sent_chunks", "Pieces of the log sent to slaves.", counts.sent_chunks),
            ("resent_bytes", "Bytes of the log sent to a slave that it had been sent before.", counts.resent_bytes),
            ("received_bytes", "Bytes of the log received from masters.", counts.received_bytes),
            ("repeated_bytes", "Bytes of the log that were received once more, and skipped.", counts.repeated_bytes),
            ("cut_bytes", "Bytes of this log dropped where it parted from its master's.", counts.cut_bytes),
            ("checkpoints_sent", "Slaves that had to begin anew.", counts.checkpoints_sent),
            ("checkpoints_taken", "How often this replica had to begin anew.", counts.checkpoints_taken),
            ("checks_failed", "Damaged records that were received, or found in this log.", counts.checks_failed),
            ("repaired_records", "Damaged records taken from another replica.", counts.repaired_records),
            ("repaired_bytes", "Bytes of those.", counts.repaired_bytes),
            ("irreparable_records", "Damaged records that no other replica could repair.", counts.irreparable),
            ("streams_broken", "Streams from or to another replica that broke.", counts.streams_broken),
            ("set_changes", "Changes of the sync-state set that this master asked for.", counts.set_changes),
            (
                "refused_followers",
                "Slaves refused because 15 follow already.",
                counts.refused_followers,
            ),
            (
                "window_waits",
                "Times that a slave had 8 MiB under way to it, and got no more.",
                counts.window_waits,
            ),
            (
                "sync_waits",
                "Times that this slave had 64 MiB to sync, and took no more.",
                counts.sync_waits,
            ),
        ):
            yield CounterMetricFamily(f"popwheel_replication_{name}", text, value=value)

    def _of_master(self, master: ReplicationMaster | None) -> Iterator[Metric]:
        labels = ("replica",)
        behind_bytes = GaugeMetricFamily(
            "popwheel_replication_lag_bytes", "Bytes of the master's log that a replica has not synced.", labels=labels
        )
        behind_s = GaugeMetricFamily(
            "popwheel_replication_lag_seconds",
            "For how long a replica has been behind, of broker.replication.lag_ms_max.",
            labels=labels,
        )
        for lag in () if master is None else master.lags():
            behind_bytes.add_metric((str(lag.replica),), lag.behind_bytes)
            behind_s.add_metric((str(lag.replica),), lag.behind_ms / 1000)
        yield behind_bytes
        yield behind_s
        yield GaugeMetricFamily(
            "popwheel_replication_followers",
            "Slaves that follow this master, of 15 at most.",
            value=0 if master is None else master.followers,
        )
        yield GaugeMetricFamily(
            "popwheel_replication_under_way_bytes",
            "Bytes under way to the slave to which most are, of 8 MiB at most.",
            value=0 if master is None else master.under_way_bytes,
        )
        yield GaugeMetricFamily(
            "popwheel_replication_unsafe_bytes",
            "Acknowledged bytes that a failover may lose: with broker.replication.ack_mode master.",
            value=0 if master is None else master.members.unsafe_bytes,
        )

    def _of_slave(self, slave: ReplicationSlave | None) -> Iterator[Metric]:
        for name, text, value in (
            ("connected", "1 while this slave follows its master.", 0 if slave is None else int(slave.is_connected)),
            (
                "behind_bytes",
                "Bytes of the master's log that this slave has not synced.",
                0 if slave is None else slave.behind_bytes,
            ),
            (
                "behind_seconds",
                "Time for which this slave has been behind, or has received nothing of its master.",
                0 if slave is None else slave.behind_ms / 1000,
            ),
        ):
            yield GaugeMetricFamily(f"popwheel_replication_{name}", text, value=value)
