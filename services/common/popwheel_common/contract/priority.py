"""Topics of type PRIORITY: their queues are levels, and of what a group may have now the highest level comes first."""

from typing import Final

from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType

LEVELS: Final = 10
"""Default number of queues of a topic with priorities."""

_PRIORITY: Final = int(TopicType.PRIORITY)


def levels_of(topic: Topic) -> int:
    """Return the number of a topic's priority levels; 0 if it has none."""
    return topic.queues if topic.type == _PRIORITY else 0


def level_of(priority: int, levels: int) -> int:
    """Return the queue of a message.

    Args:
        priority: of the message, at least 0; the higher, the earlier.
        levels: how many there are. All priorities that are too high for these share the highest one.
    """
    return max(0, min(priority, levels - 1))
