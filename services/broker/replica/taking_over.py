"""What a new master makes of the progress that it was given of the one before.

Its own log tells all but one thing: a pop that finds nothing its filter wants leaves no record. So consumer groups may
be further than the log says; then the later of both holds, and what was passed over is not read again. It is never used
where it might take a message away: if it speaks of more of the log than there is here, of another topic or group of the
same name, or of a time before somebody set the offset by hand, which is when the offsets were looked at.
"""

from services.broker.core import BrokerCore
from services.broker.replica.master_checkpoint import MasterCheckpoint
from services.common import names


def take_over_offsets(core: BrokerCore, held: MasterCheckpoint) -> int:
    """Move consumer groups on to where the old master had them; how many offsets were moved.

    Args:
        core: all of the log is folded into it, and that holds all that the checkpoint speaks of.
        held: the old master's progress.
    """
    position = held.latest.looked_position
    if not held.is_complete or core.begun_position > position:
        return 0
    moved = 0
    buffer = core.state.merge_buffer
    for (group, topic, queue_id), (committed, popped) in held.offsets.items():
        queue = core.store.queue(topic, queue_id)
        if queue is None or not _is_same(core, held, group, topic):
            continue
        if buffer.set_at(group, queue) < position:
            end = queue.max_offset
            moved += buffer.move_on(group, queue, min(committed, end), min(popped, end))
    return moved


def _is_same(core: BrokerCore, held: MasterCheckpoint, group: str, topic: str) -> bool:
    """Whether a group and a topic are those that the old master knew by their names."""
    if topic.startswith(names.DEAD_LETTER_PREFIX):
        owner = topic.removeprefix(names.DEAD_LETTER_PREFIX)
        topic_is_same = owner in core.names.group_ids and core.names.group_ids[owner] == held.groups.get(owner)
    else:
        base = names.topic_of_retry_topic(topic) or topic
        topic_is_same = base in core.names.topic_ids and core.names.topic_ids[base] == held.topics.get(base)
    return topic_is_same and group in core.names.group_ids and core.names.group_ids[group] == held.groups.get(group)
