"""Report of a replica: to the controller, and for health checks (pure)."""

from popwheel_broker.options import BrokerOptions
from popwheel_broker.replication.replica_store import ReplicaStore
from popwheel_broker.role.role import Role, RoleState
from popwheel_common.pb.popwheel.v1.controller_pb2 import ReplicaReport


def replica_report(
    options: BrokerOptions,
    address: str,
    role: Role,
    files: ReplicaStore,
    checkpoint_version: int,
    *,
    leaving: bool,
) -> ReplicaReport:
    """Return the report to the controller.

    Args:
        options: settings.
        address: host:port at which proxies, other replicas and the controller reach it.
        role: the replica's role.
        files: its log.
        checkpoint_version: of the progress of its master that it has.
        leaving: whether it is to shut down, and its group can do without it.
    """
    leader, group = role.leader, role.group
    return ReplicaReport(
        group=options.name,
        replica=options.replica,
        address=address,
        identity=role.identity,
        epoch=group.epoch,
        last_epoch=files.last_epoch,
        end_position=files.end_position,
        high_watermark=files.high_watermark,
        sync_state_set=group.sync_state_set,
        version=group.version,
        leaving=leaving,
        checkpoint_version=0 if leader is not None else checkpoint_version,
        following=[] if leader is None else leader.replication.lags(),
        leading=leader is not None and leader.epoch == group.epoch,
        suspect=files.is_suspect,
        acks_alone=options.replication.ack_mode == "master",
        cluster_id=group.cluster_id,
    )


def health(role: Role, failure: Exception | None, *, has_view: bool) -> str | None:
    """Return a sentence for `/readyz`; None if the replica can serve.

    A full disk or a damaged queue is for alerts: all calls but sends, or all other queues, are served.

    Args:
        role: the replica's role.
        failure: why it has stopped.
        has_view: whether it has received topics and groups.
    """
    if failure is not None:
        return f"the broker has stopped: {failure}"
    if role.trouble is not None:
        return f"the broker cannot take its role, and tries again: {role.trouble}"
    if not has_view:
        return "the broker has received no topics and groups from the controller yet"
    if role.state is RoleState.WAITS:
        return "the broker has no role yet: no controller has said whether it leads, or which replica it follows"
    return None
