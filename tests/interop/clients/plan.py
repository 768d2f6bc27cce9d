"""What the programs beside this file are told: a plan, as a file of JSON. All of them read the same one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Item:
    """A message to send.

    Args:
        body: what identifies it.
        end: of a half message: "commit", "rollback", or "open" for nothing said. "" for an ordinary message.
    """

    body: str
    tag: str | None = None
    message_group: str | None = None
    lite_topic: str | None = None
    priority: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    end: str = ""


@dataclass(frozen=True)
class Plan:
    """What one run of a program does: it sends, then consumes, or the other way round, and ends.

    Args:
        endpoint: `host:port` of the server.
        topic: which it sends to and consumes.
        group: consumer group.
        messages: lists; each is sent in its order, all at once.
        answers: body -> "commit", "rollback" or "unknown" for the first, second, ... time that the producer is asked.
            None: its producer does not ask to be asked.
        consumer: "push", "simple", "lite" (the push consumer of lite topics), or "" for none.
        consume_first: start the push consumer before anything is sent.
        expression: of the subscription; of tags, or of SQL92 with `sql`.
        lite_topics: which a consumer of lite topics subscribes to.
        fail: body -> how many of its first deliveries the consumer fails.
        count: how many messages are to be done until it is through.
        patience_s: until it gives up.
        linger_s: for how long it still takes messages when it is through.
        invisible_s: of a simple consumer's receives.
        poll_s: how long its polls may wait.
    """

    endpoint: str
    topic: str
    group: str
    access_key: str = ""
    secret: str = ""
    tls: bool = False
    messages: Sequence[Sequence[Item]] = ()
    answers: Mapping[str, Sequence[str]] | None = None
    consumer: str = ""
    consume_first: bool = False
    expression: str = "*"
    sql: bool = False
    lite_topics: Sequence[str] = ()
    fail: Mapping[str, int] = field(default_factory=dict)
    count: int = 0
    patience_s: float = 30.0
    linger_s: float = 2.0
    invisible_s: float = 30.0
    poll_s: float = 2.0
