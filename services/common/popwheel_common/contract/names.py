"""Names of topics, groups, broker groups and clusters: the one gate, and how the system's own names are made.

A name from outside is text until `topic`, `group`, `broker_group`, `cluster` or `process` has made a value of it;
nothing else may see it before. Outside is what another process says, and what a file says. What clients may do with a
kind of topic is `USES`, the one table of that.

| kind | its names |
| --- | --- |
| user topic | 1 to 127 letters, digits, `%`, `_`, `-`; none of the prefixes below |
| retry topic | `%RETRY%GROUP+TOPIC`; TOPIC is a user topic or a dead letter topic, never a retry topic |
| dead letter topic | `%DLQ%GROUP` |
| lite topic, as it is stored | `TOPIC+LITE`; TOPIC is a user topic, LITE 1 to 64 letters, digits, `%`, `_`, `-` |
| system topic | `rmq_sys_...` |
| group | 1 to 120 of the same characters |
| broker group, cluster | 1 to 64 letters, digits, `_`, `-` |
"""

import re
from collections.abc import Mapping
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final, NewType

from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
SYSTEM_PREFIX: Final = "rmq_sys_"
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 120
LITE_TOPIC_LENGTH_MAX: Final = 64
SPARK_PREFIX: Final = "spark-"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The consumer group in whose name tools pull, as in RocketMQ. A pull in it makes no group."""
STORED_NAME_BYTES_MAX: Final = 255
"""Longest topic name that a record of the commit log can store.

The longest retry topic has this length, and no name is longer.
"""
SHORT_NAME_PATTERN: Final = r"^[A-Za-z0-9_-]{1,64}$"
"""Pattern of the names of broker groups, of clusters, and of pages of a cluster's state."""
PROCESS_NAME_PATTERN: Final = r"^[!-~]{0,255}$"

TopicName = NewType("TopicName", str)
GroupName = NewType("GroupName", str)
BrokerGroupName = NewType("BrokerGroupName", str)
ClusterName = NewType("ClusterName", str)

_SHOWN_MAX: Final = 64
_REMEMBERED_MAX: Final = 4_096


class Kind(Enum):
    """Kind of topic that a name stands for; the value is for sentences."""

    USER = "a topic"
    RETRY = "a retry topic"
    DEAD_LETTER = "a dead letter topic"
    SYSTEM = "a topic of the system"
    LITE = "a lite topic, as it is stored"


class Use(IntEnum):
    """Use of a topic that a client asks for."""

    SEND = 1
    """SendMessage, RecallMessage, EndTransaction; Put, Recall."""
    RECEIVE = 2
    """ReceiveMessage, QueryAssignment, and all that is said of what was received; Pop, Notify, Ack and the like."""
    PULL = 3
    """PullMessage; Pull."""
    QUERY = 4
    """QueryRoute, QueryOffset, GetOffset; TimerList."""
    COMMIT = 5
    """UpdateOffset."""
    CREATE = 6
    """Create or delete the topic by its name."""


USES: Final[Mapping[Kind, frozenset[Use]]] = {
    Kind.USER: frozenset(Use),
    Kind.RETRY: frozenset({Use.PULL, Use.QUERY}),
    Kind.DEAD_LETTER: frozenset({Use.RECEIVE, Use.PULL, Use.QUERY, Use.COMMIT}),
    Kind.SYSTEM: frozenset(),
    Kind.LITE: frozenset(),
}
"""Allowed uses of each kind of topic. All else is refused with ILLEGAL_TOPIC."""

_DONE_TO: Mapping[Use, str] = {
    Use.SEND: "sent to",
    Use.RECEIVE: "received from",
    Use.PULL: "pulled from",
    Use.QUERY: "asked about",
    Use.COMMIT: "given an offset",
    Use.CREATE: "made or deleted",
}
_ADVICE: Mapping[Kind, str] = {
    Kind.RETRY: "it can be read by offset; its messages come to whoever receives from the topic behind the '+'",
    Kind.DEAD_LETTER: "it can be received from and read by offset",
    Kind.SYSTEM: "choose another",
    Kind.LITE: "name the topic before the '+', and the lite topic by itself",
}
_RETRY_SEPARATOR: Final = "+"
_LITE_SEPARATOR: Final = "+"
"""No name of a user topic has it, so it distinguishes a lite topic."""
_CHARACTER: Final = "[%A-Za-z0-9_-]"
_GROUP: Final = rf"{_CHARACTER}{{1,{GROUP_LENGTH_MAX}}}"
_USER: Final = rf"(?!{RETRY_PREFIX}|{DEAD_LETTER_PREFIX}|{SYSTEM_PREFIX}){_CHARACTER}{{1,{TOPIC_LENGTH_MAX}}}"
_DEAD_LETTER: Final = rf"{DEAD_LETTER_PREFIX}{_GROUP}"
_OF_KIND: Mapping[Kind, re.Pattern[str]] = {
    Kind.USER: re.compile(_USER),
    Kind.RETRY: re.compile(rf"{RETRY_PREFIX}{_GROUP}\{_RETRY_SEPARATOR}({_USER}|{_DEAD_LETTER})"),
    Kind.DEAD_LETTER: re.compile(_DEAD_LETTER),
    Kind.SYSTEM: re.compile(rf"{SYSTEM_PREFIX}{_CHARACTER}{{1,{TOPIC_LENGTH_MAX}}}"),
    Kind.LITE: re.compile(rf"{_USER}\{_LITE_SEPARATOR}{_CHARACTER}{{1,{LITE_TOPIC_LENGTH_MAX}}}"),
}
_OF_GROUP: Final = re.compile(_GROUP)
_OF_LITE_TOPIC: Final = re.compile(rf"{_CHARACTER}{{1,{LITE_TOPIC_LENGTH_MAX}}}")
_SHORT_NAME: Final = re.compile(SHORT_NAME_PATTERN)
_OF_PROCESS: Final = re.compile(PROCESS_NAME_PATTERN)


class NameTooLongError(StatusError):
    """A name that is refused for its length."""


@lru_cache(maxsize=_REMEMBERED_MAX)  # of names that passed: what raises is not kept
def topic(text: str, use: Use) -> TopicName:
    """Return a topic's name from outside.

    Args:
        text: as it came.
        use: what is asked of the topic.

    Raises:
        StatusError: ILLEGAL_TOPIC, it is no topic's name or of a kind of which that can't be asked.
    """
    kind = kind_of(text)
    if _OF_KIND[kind].fullmatch(text) is None:
        raise _no_topic(text, kind)
    if use not in USES[kind]:
        raise StatusError(
            Code.ILLEGAL_TOPIC, f"{shown(text)} is {kind.value} and cannot be {_DONE_TO[use]}; {_ADVICE[kind]}"
        )
    return TopicName(text)


@lru_cache(maxsize=_REMEMBERED_MAX)
def group(text: str) -> GroupName:
    """Return a consumer group's name from outside.

    Raises:
        StatusError: ILLEGAL_CONSUMER_GROUP.
    """
    if _OF_GROUP.fullmatch(text) is None:
        raise _refusal(
            Code.ILLEGAL_CONSUMER_GROUP, f"a consumer group: {_rule(GROUP_LENGTH_MAX)}", text, GROUP_LENGTH_MAX
        )
    return GroupName(text)


@lru_cache(maxsize=_REMEMBERED_MAX)
def checked_lite_topic(text: str) -> str:
    """Return a lite topic's name from outside, as clients say it.

    Raises:
        StatusError: ILLEGAL_LITE_TOPIC.
    """
    if _OF_LITE_TOPIC.fullmatch(text) is None:
        raise _refusal(
            Code.ILLEGAL_LITE_TOPIC, f"a lite topic: {_rule(LITE_TOPIC_LENGTH_MAX)}", text, LITE_TOPIC_LENGTH_MAX
        )
    return text


def broker_group(text: str) -> BrokerGroupName:
    """Return a broker group's name from outside.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if not is_broker_group(text):
        raise _no_short_name(text, "a broker group")
    return BrokerGroupName(text)


def cluster(text: str) -> ClusterName:
    """Return a cluster's name from outside.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if not is_cluster(text):
        raise _no_short_name(text, "a cluster")
    return ClusterName(text)


def page(text: str) -> str:
    """Return the name of a page of the cluster's state, of which a file's or a resource's name is made.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if _SHORT_NAME.fullmatch(text) is None:
        raise _no_short_name(text, "a page")
    return text


def process(text: str) -> str:
    """Return a process' name for status pages, which may be empty.

    Raises:
        StatusError: BAD_REQUEST.
    """
    if _OF_PROCESS.fullmatch(text) is None:
        raise StatusError(
            Code.BAD_REQUEST,
            f"{shown(text)} is not a name for a process: letters, digits and signs of ASCII, at most 255 of them",
        )
    return text


def is_topic(text: str) -> bool:
    """Return whether a stored name is that of a topic that clients may have made."""
    return _OF_KIND[Kind.USER].fullmatch(text) is not None


def is_group(text: str) -> bool:
    """Return whether a stored name is that of a consumer group."""
    return _OF_GROUP.fullmatch(text) is not None


def is_of_spark(text: str) -> bool:
    """Return whether a group's name marks it as one by which a Spark query shows its progress.

    It is for people only: the query goes by its own checkpoint, and nothing depends on the name.
    """
    return text.startswith(SPARK_PREFIX)


def is_broker_group(text: str) -> bool:
    """Return whether a stored name is that of a broker group."""
    return _SHORT_NAME.fullmatch(text) is not None


def is_cluster(text: str) -> bool:
    """Return whether a stored name is that of a cluster."""
    return _SHORT_NAME.fullmatch(text) is not None


def is_storable(text: str) -> bool:
    """Return whether a record can name this topic, be it a legal name or one that an older release allowed."""
    return 0 < len(text) <= STORED_NAME_BYTES_MAX and _size(text) <= STORED_NAME_BYTES_MAX


def kind_of(name: str) -> Kind:
    """Return the kind of a topic's name."""
    if name.startswith(RETRY_PREFIX):
        return Kind.RETRY
    if name.startswith(DEAD_LETTER_PREFIX):
        return Kind.DEAD_LETTER
    if name.startswith(SYSTEM_PREFIX):
        return Kind.SYSTEM
    return Kind.LITE if _LITE_SEPARATOR in name else Kind.USER


def lite_topic(topic: str, lite: str) -> str:
    """Return the name under which a lite topic of a topic is stored. Both are legal names; it fits into a record."""
    return f"{topic}{_LITE_SEPARATOR}{lite}"


def lite_parent(topic: str) -> str:
    """Return the topic that a lite topic is of, by its stored name; any other name up to a '+' in it."""
    return topic.partition(_LITE_SEPARATOR)[0]


def client_topic(topic: str) -> str:
    """Return the topic that clients name for a stored one: that which a lite topic is of; any other topic itself."""
    return topic.partition(_LITE_SEPARATOR)[0] if kind_of(topic) is Kind.LITE else topic


def lite_of(topic: str) -> str:
    """Return the lite topic's own name, of the name that it is stored under; empty if it is none."""
    return topic.partition(_LITE_SEPARATOR)[2] if kind_of(topic) is Kind.LITE else ""


def retry_topic(group: str, topic: str) -> TopicName:
    """Return the topic of the group's redeliveries: messages of `topic` that were not acknowledged in time.

    It fits into a record.

    The separator is one that no name may hold: with the articles' `_`, group `a` on topic `b_c` and group `a_b` on
    topic `c` would share a retry topic (decision 0005).

    Raises:
        StatusError: ILLEGAL_TOPIC, there is none: `topic` is a retry topic itself, or one of the names is illegal.
    """
    return _retry_topic(stored_retry_topic(group, topic))


def stored_retry_topic(group: str, topic: str) -> str:
    """Return the same for any names: an older release had retry topics of retry topics."""
    return f"{RETRY_PREFIX}{group}{_RETRY_SEPARATOR}{topic}"


def group_of_retry_topic(topic: str) -> str:
    """Return the group of a retry topic, as `retry_topic` makes it; empty if it is none."""
    group, separator, _ = topic.removeprefix(RETRY_PREFIX).partition(_RETRY_SEPARATOR)
    return group if separator and topic.startswith(RETRY_PREFIX) else ""


def topic_of_retry_topic(topic: str) -> str:
    """Return the topic of a retry topic, as `retry_topic` makes it; empty if it is none.

    Of a retry of a retry, as older releases made them, the topic at the bottom: it goes when that goes.
    """
    return topic.rpartition(_RETRY_SEPARATOR)[2] if topic.startswith(RETRY_PREFIX) else ""


def dead_letter_topic(group: str) -> TopicName:
    """Return the topic for messages that failed as often as the group's limit allows."""
    return TopicName(f"{DEAD_LETTER_PREFIX}{group}")


def revive_topic(cluster: str) -> str:
    """Return the topic whose queues have the deliveries and acks of a cluster's brokers."""
    return f"{REVIVE_PREFIX}{cluster}"


def quarantine_topic(cluster: str) -> str:
    """Return the topic whose only queue has the poison messages of a cluster's brokers."""
    return f"rmq_sys_QUARANTINE_{cluster}"


def shown(text: str) -> str:
    """Return a text from outside as a sentence or a line of a log may hold it: of bounded length, and printable."""
    return repr(text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "...")


@lru_cache(maxsize=_REMEMBERED_MAX)
def _retry_topic(text: str) -> TopicName:
    if _OF_KIND[Kind.RETRY].fullmatch(text) is None:
        raise _no_topic(text, Kind.RETRY)
    return TopicName(text)


def _size(text: str) -> int:
    """Bytes of a text in UTF-8; more than any name has, if it has none."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return STORED_NAME_BYTES_MAX + 1


def _rule(length_max: int) -> str:
    return f"letters, digits, '%', '_' and '-', between 1 and {length_max} of them"


def _no_topic(text: str, kind: Kind) -> StatusError:
    """Return the refusal of a name that is illegal for the kind of its prefix."""
    if kind is Kind.RETRY:
        rule, length_max = (
            "made of a group and a topic or dead letter topic, '%RETRY%GROUP+TOPIC'",
            STORED_NAME_BYTES_MAX,
        )
    elif kind is Kind.DEAD_LETTER:
        rule, length_max = "made of a group, '%DLQ%GROUP'", len(DEAD_LETTER_PREFIX) + GROUP_LENGTH_MAX
    else:
        rule, length_max = _rule(TOPIC_LENGTH_MAX), TOPIC_LENGTH_MAX
        kind = Kind.USER if kind is Kind.LITE else kind  # the sentence is about letters, '+' is none
    return _refusal(Code.ILLEGAL_TOPIC, f"{kind.value}: {rule}", text, length_max)


def _refusal(code: Code.ValueType, what: str, text: str, length_max: int) -> StatusError:
    error = NameTooLongError if len(text) > length_max else StatusError
    return error(code, f"{shown(text)} is not a name for {what}")


def _no_short_name(text: str, what: str) -> StatusError:
    return StatusError(
        Code.BAD_REQUEST,
        f"{shown(text)} is not a name for {what}: letters, digits, '_' and '-', between 1 and 64 of them",
    )
