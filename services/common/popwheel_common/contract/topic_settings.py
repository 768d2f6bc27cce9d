"""Settings of topics beside their type and their queues, declared once.

The admin API, the command line, files of definitions, resources of Kubernetes and the stored state of the controllers
take them from this table. A setting is a row here, a field of `popwheel.v1.Topic`, and a property in the chart's
`crds/topics.yaml`; the code that obeys it reads the field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from popwheel_common.contract.time_to_live import DEAD_LETTER, DELIVER, DROP, PROPERTY
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import Topic, TopicType

Value = int | str

_TEN_YEARS_MS: Final = 3650 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting: a span of time, or one of some words.

    Args:
        name: its field in `popwheel.v1.Topic`, the admin API and files; a span's ends in `_ms`.
        help: its description.
        refusal: sentence for a value that a topic can't have.
        types: types of topics that may have it; empty for all.
        least_ms, most_ms: bounds of a span; 0 is always allowed, and means that there is none.
        words: allowed words. The first one is the default, which the field has as an empty text.
    """

    name: str
    help: str
    refusal: str
    types: frozenset[int] = frozenset()
    least_ms: int = 0
    most_ms: int = _TEN_YEARS_MS
    words: tuple[str, ...] = ()

    @property
    def default(self) -> Value:
        """Value of a topic for which nothing was said."""
        return self.words[0] if self.words else 0

    @property
    def resource_key(self) -> str:
        """Key in resources of Kubernetes: the name in camel case."""
        first, *others = self.name.split("_")
        return first + "".join(each.capitalize() for each in others)

    @property
    def option(self) -> str:
        """Option of the command line."""
        return "--" + self.name.removesuffix("_ms").replace("_", "-")

    def applies_to(self, topic_type: int) -> bool:
        """Return whether topics of a type may have this setting."""
        return not self.types or topic_type in self.types

    def is_shown(self, topic_type: int, value: Value) -> bool:
        """Return whether definitions of topics of a type show a value. A default is shown of the settings that only
        some types have, so what was written before a setting existed is as it was.
        """
        return value != self.default or topic_type in self.types

    def of(self, topic: Topic) -> Value:
        """Return the value that a topic has."""
        value: Value = getattr(topic, self.name)
        return value or self.default

    def put(self, topic: Topic, value: Value) -> None:
        """Give a topic a value.

        Raises:
            StatusError: BAD_REQUEST: the topic can't have it; it is unchanged.
        """
        if value == self.default:
            topic.ClearField(self.name)  # type: ignore[arg-type]
            return
        if not (self.applies_to(topic.type) and self._is_valid(value)):
            raise StatusError(Code.BAD_REQUEST, self.refusal)
        setattr(topic, self.name, value)

    def _is_valid(self, value: Value) -> bool:
        if self.words:
            return value in self.words
        return isinstance(value, int) and self.least_ms <= value <= self.most_ms


LITE_EXPIRATION_MS_MIN: Final = 1000

EXPIRED_MESSAGES: Final = TopicSetting(
    "expired_messages",
    f"What becomes of messages past their time to live, their property {PROPERTY}: deliver, drop or dead_letter.",
    f"expired_messages must be {DELIVER}, {DROP} or {DEAD_LETTER}",
    words=(DELIVER, DROP, DEAD_LETTER),
)
TOPIC_SETTINGS: Final = (
    TopicSetting(
        "lite_expiration_ms",
        "Of type LITE: a lite topic into which nothing came for this time ends, with its messages. 0: never.",
        f"only topics of type LITE have a lite expiration, of {LITE_EXPIRATION_MS_MIN} ms to ten years",
        types=frozenset((TopicType.LITE,)),
        least_ms=LITE_EXPIRATION_MS_MIN,
    ),
    EXPIRED_MESSAGES,
)


def change_settings(topic: Topic, wanted: Mapping[str, Value]) -> None:
    """Give a topic the wanted values; settings that are not named keep theirs.

    Raises:
        StatusError: BAD_REQUEST: it can't have one of them; some may have changed.
    """
    for each in TOPIC_SETTINGS:
        if each.name in wanted:
            each.put(topic, wanted[each.name])


def settings_of(topic: Topic) -> dict[str, Value]:
    """Return the values that are shown of a topic."""
    return {each.name: value for each in TOPIC_SETTINGS if each.is_shown(topic.type, value := each.of(topic))}
