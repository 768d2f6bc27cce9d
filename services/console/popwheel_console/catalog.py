"""Pages, forms and streams of the console. A new page is a module in `pages`, a template, and an entry here."""

from collections.abc import Sequence
from typing import Final

from popwheel_console.page import Action, Page, Stream
from popwheel_console.pages import (
    balance,
    browse,
    changes,
    client,
    clients,
    dead_letters,
    group,
    groups,
    in_flight,
    message,
    messages,
    overview,
    pauses,
    poison_message,
    polls,
    replicas,
    reset,
    retries,
    send,
    settings,
    timers,
    topic,
    topics,
    trouble,
)

PAGES: Final[Sequence[Page]] = (
    overview.PAGE,
    topics.PAGE,
    topic.PAGE,
    browse.PAGE,
    browse.TAIL,
    send.PAGE,
    groups.PAGE,
    group.PAGE,
    reset.PAGE,
    retries.PAGE,
    dead_letters.PAGE,
    in_flight.PAGE,
    messages.PAGE,
    message.PAGE,
    timers.PAGE,
    clients.PAGE,
    client.PAGE,
    replicas.PAGE,
    polls.PAGE,
    trouble.PAGE,
    poison_message.PAGE,
    balance.PAGE,
    changes.PAGE,
    settings.PAGE,
)

ACTIONS: Final[Sequence[Action]] = (
    topics.CREATE,
    topic.DELETE,
    topic.CHANGE,
    groups.CREATE,
    group.DELETE,
    group.CHANGE,
    send.SEND,
    *pauses.ACTIONS,
    in_flight.RELEASE,
    timers.RECALL,
    reset.RESET,
    replicas.SWITCHOVER,
    replicas.DRILL,
    dead_letters.REDRIVE,
    dead_letters.CHOOSE,
    dead_letters.PURGE,
    poison_message.RETRY,
    poison_message.DROP,
)

STREAMS: Final[Sequence[Stream]] = (browse.EVENTS, dead_letters.EXPORT)
