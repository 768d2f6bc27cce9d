"""Messages of the send command, from its options (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from popwheel_cli.errors import WrongUseError
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Message


@dataclass(frozen=True)
class MessageDraft:
    """Draft of the properties that all messages of one command share.

    Args:
        topic: where they go.
        properties: the application's own.
        keys: words to find them by.
        tag: consumers may filter by it.
        due_ms: when they are to be delivered; None: at once.
        group: message group, in which order is kept; empty: none.
        priority: the highest comes first; None: none.
        lite_topic: of a topic of lite topics; empty: none.
    """

    topic: str
    properties: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    tag: str = ""
    due_ms: int | None = None
    group: str = ""
    priority: int | None = None
    lite_topic: str = ""

    def __post_init__(self) -> None:
        kinds = {
            "--delay or --at": self.due_ms is not None,
            "--group": bool(self.group),
            "--priority": self.priority is not None,
            "--lite-topic": bool(self.lite_topic),
        }
        chosen = [option for option, is_chosen in kinds.items() if is_chosen]
        if len(chosen) > 1:
            raise WrongUseError(f"choose one of {' and '.join(chosen)}: a message is of one type")

    def message(self, body: bytes, message_id: str, now_ms: int, host: str) -> Message:
        """Return a message with a body.

        Args:
            body: what it says.
            message_id: names it.
            now_ms: the time.
            host: this machine.
        """
        message = Message(topic=definition.Resource(name=self.topic), user_properties=self.properties, body=body)
        system = message.system_properties
        system.message_id = message_id
        system.keys.extend(self.keys)
        system.body_encoding = definition.IDENTITY
        system.born_host = host
        system.born_timestamp.FromMilliseconds(now_ms)
        system.message_type = definition.NORMAL
        if self.tag:
            system.tag = self.tag
        if self.due_ms is not None:
            system.message_type = definition.DELAY
            system.delivery_timestamp.FromMilliseconds(self.due_ms)
        elif self.group:
            system.message_type = definition.FIFO
            system.message_group = self.group
        elif self.priority is not None:
            system.message_type = definition.PRIORITY
            system.priority = self.priority
        elif self.lite_topic:
            system.message_type = definition.LITE
            system.lite_topic = self.lite_topic
        return message
