"""Pauses and resumes topics and groups: what is paused is delivered to nobody, and all else goes on (pure)."""

from popwheel_common.pb.popwheel.v1.controller_pb2 import ClusterUpdate, Group, Topic
from popwheel_controller.cluster.cluster_state import ClusterState


def pause_topic(state: ClusterState, name: str, paused_ms: int) -> ClusterUpdate | None:
    """Pause or resume a topic; None if it is so already.

    Args:
        state: of the cluster.
        name: of the topic.
        paused_ms: since when it is paused; 0 resumes it.

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
