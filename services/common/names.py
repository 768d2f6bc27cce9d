"""Names of topics and groups: which are legal, and how the system's own are made of them."""

import re

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
SYSTEM_PREFIX = "rmq_sys_"
STORED_NAME_LENGTH_MAX = 255
"""What a record of the commit log and a folder of the file system can hold."""

_RETRY_SEPARATOR = "+"
_LEGAL = re.compile(r"[%A-Za-z0-9_-]+")


def retry_topic(group: str, topic: str) -> str:
    """Where messages of `topic` that `group` did not acknowledge in time come again.

    The separator is one that no name may hold: with the articles' `_`, group `a` on topic `b_c` and group `a_b` on
    topic `c` would share a retry topic (decision 0005).
    """
    return f"{RETRY_PREFIX}{group}{_RETRY_SEPARATOR}{topic}"


def group_of_retry_topic(topic: str) -> str:
    """The group whose retry topic this is, as `retry_topic` makes it; empty if it is none."""
    group, separator, _ = topic.removeprefix(RETRY_PREFIX).partition(_RETRY_SEPARATOR)
    return group if separator and topic.startswith(RETRY_PREFIX) else ""


def topic_of_retry_topic(topic: str) -> str:
    """The topic whose retry topic this is, as `retry_topic` makes it; empty if it is none."""
    return topic.partition(_RETRY_SEPARATOR)[2] if topic.startswith(RETRY_PREFIX) else ""


def dead_letter_topic(group: str) -> str:
    """Where messages end that `group` has failed on as often as it may."""
    return f"{DEAD_LETTER_PREFIX}{group}"


def revive_topic(cluster: str) -> str:
    """The topic whose queues hold the CK and ACK records of a cluster's brokers."""
    return f"{REVIVE_PREFIX}{cluster}"


def is_legal(name: str, length_max: int) -> bool:
    """Whether a name has 1 to `length_max` characters: letters, digits, `%`, `_` and `-`, as RocketMQ has it."""
    return 0 < len(name) <= length_max and _LEGAL.fullmatch(name) is not None


def is_system_topic(name: str) -> bool:
    """Whether clients may not send to or create a topic of this name."""
    return name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX, SYSTEM_PREFIX))
