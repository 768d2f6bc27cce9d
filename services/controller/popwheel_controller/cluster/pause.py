"""Pause and resumption of topics and groups: a paused one is not delivered, all other calls work (pure)."""

from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_controller.cluster.cluster_state import ClusterState


def pause_topic(state: ClusterState, name: str, paused_ms: int) -> ClusterUpdate | None:
    """Pause or resume a topic; return None if nothing changes.

    Args:
        state: of the cluster.
        name: of the topic.
        paused_ms: start of the pause; 0 resumes it.

    Raises:
        StatusError: TOPIC_NOT_FOUND.
    """
    topic = Topic()
    topic.CopyFrom(state.topic(name))
    if bool(topic.paused_ms) == bool(paused_ms):
        return None
    topic.paused_ms = paused_ms
    return ClusterUpdate(version=state.version + 1, topics=[topic], named=state.version + 1)


def pause_group(state: ClusterState, name: str, paused_ms: int) -> ClusterUpdate | None:
    """Pause or resume a consumer group; arguments and result as of `pause_topic`.

    Raises:
        StatusError: CONSUMER_GROUP_NOT_FOUND.
    """
    group = Group()
    group.CopyFrom(state.group(name))
    if bool(group.paused_ms) == bool(paused_ms):
        return None
    group.paused_ms = paused_ms
    return ClusterUpdate(version=state.version + 1, groups=[group], named=state.version + 1)
