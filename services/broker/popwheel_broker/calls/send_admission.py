"""Admission of messages at a master: those of sends, and those that the end of a transaction makes visible."""

from popwheel_broker.log.flusher import too_few_replicas
from popwheel_broker.log.message_store import MessageStore
from popwheel_broker.log.refusals import device_behind, disk_full
from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.disk_watch import DiskWatch
from popwheel_broker.replication.sync_state_set import SyncStateSet
from popwheel_common.errors import StatusError


class SendAdmission:
    """Refuses while the disk is nearly full, too few replicas are in sync, or the device does not keep up.

    Args:
        store: whose log grows.
        options: limits.
        disk_watch: usage of the disk.
        members: the sync-state set.
    """

    def __init__(
        self, store: MessageStore, options: BrokerOptions, disk_watch: DiskWatch, members: SyncStateSet
    ) -> None:
        self._store = store
        self._disk_watch = disk_watch
        self._members = members
        self._needs_others = options.replication.min_in_sync_replicas > 1
        self._waiting_bytes_max = options.waiting_bytes_max

    def disk_is_full(self) -> bool:
        """Return whether the disk is the reason to refuse."""
        return self._disk_watch.is_full(self._store.log.end_position)

    def refusal(self) -> StatusError | None:
        """Return why no message may be accepted now; None if it may."""
        if self.disk_is_full():
            return disk_full()
        if self._needs_others and not self._members.enough:
            return too_few_replicas()
        store = self._store
        if store.log.end_position - store.high_watermark > self._waiting_bytes_max:
            return device_behind()
        return None
