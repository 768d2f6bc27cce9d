"""Facts of a client from its settings, as operators are shown them: cut to a bounded size (pure)."""

from typing import Final, NamedTuple

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import ClientType, Language, Resource, Settings

NAMES_MAX: Final = 100
"""Topics that are shown of a client; more are counted."""
FILTER_LENGTH_MAX: Final = 256
"""Characters of a filter that are shown."""
_WORD_LENGTH_MAX: Final = 64
_HOST_LENGTH_MAX: Final = 255
_BYTES_OF_ENTRY: Final = 200

KINDS: Final = {
    ClientType.PRODUCER: "producer",
    ClientType.PUSH_CONSUMER: "push",
    ClientType.SIMPLE_CONSUMER: "simple",
    ClientType.PULL_CONSUMER: "pull",
    ClientType.LITE_PUSH_CONSUMER: "lite push",
    ClientType.LITE_SIMPLE_CONSUMER: "lite simple",
}
_LANGUAGES: Final = {number: name for name, number in Language.items() if number}


class ClientFacts(NamedTuple):
    """Facts on a client.

    Args:
        language, version, platform, hostname: of its library and its machine; empty if not reported.
        kind: one of `KINDS`; empty if not reported.
        group: of a consumer.
        subscriptions: some of the topics that it reads, with their filters.
        subscriptions_total: number of them all.
        publishes: some of the topics that it sends to.
        publishes_total: number of them all.
    """

    language: str = ""
    version: str = ""
    platform: str = ""
    hostname: str = ""
    kind: str = ""
    group: str = ""
    subscriptions: tuple[tuple[str, str], ...] = ()
    subscriptions_total: int = 0
    publishes: tuple[str, ...] = ()
    publishes_total: int = 0

    @property
    def bytes(self) -> int:
        """Approximate memory of the lists, in bytes."""
        texts = sum(len(topic) + len(text) + _BYTES_OF_ENTRY for topic, text in self.subscriptions)
        return texts + sum(len(topic) + _BYTES_OF_ENTRY for topic in self.publishes)

    def without_lists(self) -> "ClientFacts":
        """Return the facts with the numbers of topics alone."""
        return self._replace(subscriptions=(), publishes=())


UNKNOWN: Final = ClientFacts()


def facts_of(settings: Settings) -> ClientFacts:
    """Return the facts of accepted settings."""
    agent, subscription, publishing = settings.user_agent, settings.subscription, settings.publishing
    return ClientFacts(
        language=_LANGUAGES.get(agent.language, ""),
        version=agent.version[:_WORD_LENGTH_MAX],
        platform=agent.platform[:_WORD_LENGTH_MAX],
        hostname=agent.hostname[:_HOST_LENGTH_MAX],
        kind=KINDS.get(settings.client_type, ""),
        group=_full_name(subscription.group) if subscription.group.name else "",
        subscriptions=tuple(
            (_full_name(each.topic), each.expression.expression[:FILTER_LENGTH_MAX] or "*")
            for each in subscription.subscriptions[:NAMES_MAX]
        ),
        subscriptions_total=len(subscription.subscriptions),
        publishes=tuple(_full_name(each) for each in publishing.topics[:NAMES_MAX]),
        publishes_total=len(publishing.topics),
    )


def _full_name(resource: Resource) -> str:
    """Return the full name; such settings were checked before."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name
