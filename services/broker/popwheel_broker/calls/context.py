"""Parts of a replica that last as long as its process: the same for each role that it takes, and for all calls."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from popwheel_broker.calls.metrics import BrokerStatistics
from popwheel_broker.delay.timer_metrics import TimerStatistics
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.channels import BrokerChannels
from popwheel_broker.replication.constants import ReplicationConstants
from popwheel_broker.replication.disk_watch import DiskWatch
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.replication.statistics import ReplicationStatistics
from popwheel_common.clock import Clock
from popwheel_common.contract.cluster_view import ClusterView
from popwheel_common.disk import Disk
from popwheel_rpc.membership.controller_watch import ControllerWatch


@dataclass(frozen=True, slots=True)
class BrokerContext:
    """Settings and surroundings of a replica.

    Args:
        options: settings.
        constants: paces and sizes of replication.
        files: the log, and the core folded from it.
        disk: where its files are.
        clock: the time.
        view: topics and groups.
        channels: connections to the controller and to other replicas.
        controller_watch: returns when the view is ready.
        disk_watch: usage of the disk.
        statistics: counts of the broker.
        timer_statistics: counts of the timer.
        replication_statistics: counts of replication.
        repair: mends a damaged record at a position of the log; returns whether it is mended.
        on_failure: called if the broker can't continue.
        has_failed: whether it was called.
    """

    options: BrokerOptions
    constants: ReplicationConstants
    files: ReplicaStore
    disk: Disk
    clock: Clock
    view: ClusterView
    channels: BrokerChannels
    controller_watch: ControllerWatch
    disk_watch: DiskWatch
    statistics: BrokerStatistics
    timer_statistics: TimerStatistics
    replication_statistics: ReplicationStatistics
    repair: Callable[[int], Awaitable[bool]]
    on_failure: Callable[[Exception], None]
    has_failed: Callable[[], bool]
