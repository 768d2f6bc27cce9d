"""docs/reference/statuses.md: every status that the services answer with, and what to do about it."""

import re
from pathlib import Path

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tools.reference.markdown import head, table

_ROOT = Path(__file__).resolve().parents[2]
_PROTO = _ROOT / "proto/apache/rocketmq/v2/definition.proto"
_TRY_AGAIN = "try again later"

MEANINGS = {
    "OK": ("done", ""),
    "MULTIPLE_RESULTS": ("entries of the answer differ", "look at the status of each entry"),
    "BAD_REQUEST": ("something is missing or makes no sense, and no status below fits", "read the sentence"),
    "ILLEGAL_TOPIC": ("not a topic's name, or one that this call may not use", "see [names](limits.md#names)"),
    "ILLEGAL_CONSUMER_GROUP": ("not a group's name", "see [names](limits.md#names)"),
    "ILLEGAL_MESSAGE_TAG": (
        "a tag is empty, `*`, too long, or has a bar, a control character or a space at an end",
        "choose another tag",
    ),
    "ILLEGAL_MESSAGE_KEY": ("a key is blank or has control characters", "choose another key"),
    "ILLEGAL_MESSAGE_GROUP": ("a message group is empty or too long", "see [limits](limits.md#messages)"),
    "ILLEGAL_MESSAGE_PROPERTY_KEY": ("a property's name is blank or has control characters", "choose another name"),
    "INVALID_TRANSACTION_ID": ("no such transaction, or it ended the other way", "do not repeat it"),
    "ILLEGAL_MESSAGE_ID": (
        "a message id is too long, or missing where one is looked for",
        "see [limits](limits.md#messages)",
    ),
    "ILLEGAL_FILTER_EXPRESSION": ("a filter cannot be read, or is too long", "see [filters](../use/filters.md)"),
    "ILLEGAL_INVISIBLE_TIME": ("an invisible duration is too short or too long", "see [limits](limits.md#receiving)"),
    "ILLEGAL_DELIVERY_TIME": ("a delivery time is too far ahead", "see [delayed messages](../internals/timers.md)"),
    "INVALID_RECEIPT_HANDLE": (
        "the invisible duration is over, the message was acknowledged, or its group was reset",
        "let it go: the message comes again if it has to",
    ),
    "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE": (
        "the message is of another type than its topic",
        "send it to a topic of its type, or of type MIXED",
    ),
    "CLIENT_ID_REQUIRED": ("the header `x-mq-client-id` is missing or too long", "use an official client"),
    "ILLEGAL_POLLING_TIME": ("a poll's time is negative", "set one from zero up"),
    "ILLEGAL_OFFSET": ("an offset that the queue cannot have", "ask for the queue's offsets first"),
    "ILLEGAL_LITE_TOPIC": ("not a lite topic's name", "see [lite topics](../use/lite.md)"),
    "INVALID_CLIENT_PROPERTIES": (
        "a client's settings are too large, or say neither what it sends nor what it reads",
        "see [limits](limits.md#messages)",
    ),
    "UNAUTHORIZED": ("the user is not known, or its secret or token is wrong", "see [access](../operate/access.md)"),
    "FORBIDDEN": ("the user's rules do not allow it", "see [access](../operate/access.md)"),
    "NOT_FOUND": ("no such thing", "look at what there is"),
    "MESSAGE_NOT_FOUND": ("no message came while a poll waited, or there is no such message", "poll again"),
    "TOPIC_NOT_FOUND": ("no such topic, and this server makes none on first use", "make it"),
    "CONSUMER_GROUP_NOT_FOUND": ("no such group, and this server makes none on first use", "make it"),
    "OFFSET_NOT_FOUND": ("the group has no offset for this queue", "begin where you want to"),
    "REQUEST_TIMEOUT": ("(HTTP) a request took too long to come in", _TRY_AGAIN),
    "PAYLOAD_TOO_LARGE": ("too many messages, handles or fields in a call", "send them in several calls"),
    "MESSAGE_BODY_TOO_LARGE": ("a body is larger than allowed", "see [limits](limits.md#messages)"),
    "MESSAGE_BODY_EMPTY": ("a body has no byte", "send one"),
    "PRECONDITION_FAILED": ("something else has to be done first", "read the sentence"),
    "TOO_MANY_REQUESTS": ("a limit is reached; the sentence names it", _TRY_AGAIN),
    "LITE_TOPIC_QUOTA_EXCEEDED": ("too many lite topics", "let some expire, or raise the limit"),
    "LITE_SUBSCRIPTION_QUOTA_EXCEEDED": ("a client reads too many lite topics", "end some subscriptions"),
    "REQUEST_HEADER_FIELDS_TOO_LARGE": ("(HTTP) a request's head is too long, or has too many headers", "send fewer"),
    "MESSAGE_PROPERTIES_TOO_LARGE": ("too many properties, or too long ones", "see [limits](limits.md#messages)"),
    "INTERNAL_ERROR": (
        "a fault of the server or its device; the sentence says whether it is known what was stored",
        "report it, with the log",
    ),
    "INTERNAL_SERVER_ERROR": ("a fault of the server, or one record that fails", "report it, with the log"),
    "HA_NOT_AVAILABLE": (
        "a broker group has no master, or too few replicas in sync; nothing was done",
        f"{_TRY_AGAIN}; official clients do so by themselves",
    ),
    "NOT_IMPLEMENTED": ("a process of an older release does not have it", "upgrade that process"),
    "PROXY_TIMEOUT": ("a broker did not answer in time; for a send it is unknown whether it was stored", _TRY_AGAIN),
    "MASTER_PERSISTENCE_TIMEOUT": ("known of other servers; this release does not answer it", _TRY_AGAIN),
    "SLAVE_PERSISTENCE_TIMEOUT": (
        "the master has the message, and it is unknown whether the replicas in sync do",
        f"{_TRY_AGAIN}; it may come twice",
    ),
    "UNSUPPORTED": ("not for this message or topic, switched off, or not in an older broker", "read the sentence"),
}
"""Status -> what has happened, and what a caller does then."""


_HEAD = """\
Each answer has a status: a code for programs, and a sentence for people that says what to do. A request that is refused
has changed nothing, unless the table says that the outcome is unknown. Clients older than 5.0.3 see later codes as
BAD_REQUEST.
"""


def used() -> set[str]:
    """The statuses that code of the services names."""
    found = set()
    for path in (_ROOT / "services").rglob("*.py"):
        if path.parent.name != "v1" and "pb" not in path.parts:
            found |= set(re.findall(r"\bCode\.([A-Z][A-Z_]+)\b", path.read_text(encoding="utf-8")))
    return (found & set(Code.keys())) - {"CODE_UNSPECIFIED"}


def statuses_page() -> str:
    """The whole page, in Markdown.

    Raises:
        ValueError: the code answers with a status that MEANINGS does not have, or the other way round.
    """
    if wrong := sorted(used() ^ MEANINGS.keys()):
        raise ValueError(f"MEANINGS of tools/reference/statuses.py and the code differ in {', '.join(wrong)}")
    numbers = dict(Code.items())
    rows = [
        (f"`{name}`", str(numbers[name]), what, then)
        for name, (what, then) in sorted(MEANINGS.items(), key=lambda row: numbers[row[0]])
    ]
    return "\n".join(
        [
            head(
                "Statuses",
                "`Code` of the protocol and what the services answer",
                _HEAD,
            ),
            table(("status", "code", "what happened", "what to do"), rows),
        ]
    )
