"""docs/reference/limits.md: every limit that a user or operator can meet, with the value that the code has."""

import importlib
import re
from dataclasses import dataclass

from popwheel_cli.options import ClusterOptions
from popwheel_cli.process.listeners import client_limits
from popwheel_common.contract.names import USES, Kind, Use
from popwheel_common.settings.option_fields import option_fields
from popwheel_proxy.options import ProxyOptions
from tools.reference.markdown import head, table

_BUSY = "TOO_MANY_REQUESTS"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit.

    Args:
        what: what it bounds.
        source: a setting (`proxy.message.body_bytes_max`), a constant
            (`popwheel_proxy.protocol.filters:WAITING_MAX`), or a field of the transport's limits
            (`rpc:connections_max`).
        past: the status past it, or what happens then.
        label: as metrics count it, where that is not the setting's name.
        unit: of a constant whose name does not say it.
        shared: by whom it is shared: nobody may take more than is free.
    """

    what: str
    source: str
    past: str
    label: str = ""
    unit: str = ""
    shared: str = ""


SECTIONS: dict[str, tuple[str, tuple[Limit, ...]]] = {
    "Messages": (
        "What one call may have. Past most of these a call is refused, and nothing of it is stored.",
        (
            Limit("body of a message", "proxy.message.body_bytes_max", "MESSAGE_BODY_TOO_LARGE"),
            Limit("messages of one send", "proxy.message.batch_messages_max", "PAYLOAD_TOO_LARGE"),
            Limit("user properties of a message", "proxy.message.user_properties_max", "MESSAGE_PROPERTIES_TOO_LARGE"),
            Limit("their size", "proxy.message.user_properties_bytes_max", "MESSAGE_PROPERTIES_TOO_LARGE"),
            Limit(
                "keys, tag and the like", "proxy.message.system_properties_bytes_max", "MESSAGE_PROPERTIES_TOO_LARGE"
            ),
            Limit("length of a message id", "proxy.message.id_length_max", "ILLEGAL_MESSAGE_ID"),
            Limit(
                "length of a message group",
                "popwheel_proxy.protocol.validation:_MESSAGE_GROUP_LENGTH_MAX",
                "ILLEGAL_MESSAGE_GROUP",
                "message_group_length_max",
            ),
            Limit(
                "length of a topic's name",
                "popwheel_common.contract.names:TOPIC_LENGTH_MAX",
                "ILLEGAL_TOPIC",
                "topic_length_max",
            ),
            Limit(
                "length of a group's name",
                "popwheel_common.contract.names:GROUP_LENGTH_MAX",
                "ILLEGAL_CONSUMER_GROUP",
                "group_length_max",
            ),
            Limit(
                "length of a lite topic's name",
                "popwheel_common.contract.names:LITE_TOPIC_LENGTH_MAX",
                "ILLEGAL_LITE_TOPIC",
                "lite_topic_length_max",
            ),
            Limit(
                "length of a filter of tags, and of a tag",
                "popwheel_proxy.protocol.validation:_EXPRESSION_LENGTH_MAX",
                "ILLEGAL_FILTER_EXPRESSION, ILLEGAL_MESSAGE_TAG",
                "filter_expression_length_max",
            ),
            Limit(
                "length of an SQL92 filter",
                "popwheel_common.filter.lexer:LENGTH_MAX",
                "ILLEGAL_FILTER_EXPRESSION",
                "sql_filter_length_max",
            ),
            Limit(
                "names, values and operators of an SQL92 filter",
                "popwheel_common.filter.lexer:TOKENS_MAX",
                "ILLEGAL_FILTER_EXPRESSION",
            ),
            Limit(
                "time until a transaction is checked first",
                "popwheel_proxy.protocol.validation:_FIRST_CHECK_MS_MAX",
                "BAD_REQUEST",
                "first_check_ms_max",
            ),
            Limit(
                "fields of a message, and of a send beside its messages",
                "popwheel_proxy.protocol.payload:_FIELDS_MAX",
                "BAD_REQUEST",
                "message_fields_max",
            ),
            Limit(
                "addresses in QueryRoute and QueryAssignment",
                "popwheel_proxy.session.routes:_ADDRESSES_MAX",
                "BAD_REQUEST",
                "endpoints_max",
            ),
            Limit(
                "topics or subscriptions in a client's settings",
                "popwheel_proxy.session.telemetry:SETTINGS_ENTRIES_MAX",
                "INVALID_CLIENT_PROPERTIES",
                "settings_entries_max",
            ),
            Limit(
                "bytes of a client's settings",
                "popwheel_proxy.protocol.client_methods:REQUEST_BYTES_MAX",
                "INVALID_CLIENT_PROPERTIES",
                "settings_bytes_max",
            ),
            Limit(
                "bytes of other requests without messages that have very many fields",
                "popwheel_proxy.protocol.client_methods:REQUEST_BYTES_MAX",
                "PAYLOAD_TOO_LARGE",
                "plain_request_bytes_max",
            ),
        ),
    ),
    "Receiving": (
        "Polls past a limit are refused at once; official clients poll again by themselves.",
        (
            Limit("shortest invisible duration", "proxy.receive.invisible_ms_min", "ILLEGAL_INVISIBLE_TIME"),
            Limit("longest invisible duration", "proxy.receive.invisible_ms_max", "ILLEGAL_INVISIBLE_TIME"),
            Limit("shortest long poll", "proxy.grpc_client_consumer_min_long_polling_timeout_ms", "it does not wait"),
            Limit(
                "longest long poll", "proxy.grpc_client_consumer_max_long_polling_timeout_ms", "it waits for so long"
            ),
            Limit("messages of one answer", "proxy.receive.batch_messages_max", "the answer has no more"),
            Limit("handles of one acknowledgement", "proxy.receive.acknowledgements_max", "PAYLOAD_TOO_LARGE"),
            Limit("polls and pulls of a proxy", "proxy.receive.polls_max", _BUSY, shared="group"),
            Limit("of a client", "proxy.receive.polls_per_client_max", _BUSY),
            Limit("of a connection", "proxy.receive.polls_per_connection_max", _BUSY),
            Limit("topic, group and filter polled for", "proxy.receive.interests_max", _BUSY, shared="group"),
            Limit(
                "length of these filters together",
                "popwheel_proxy.receive.interest_book:FILTER_BYTES_MAX",
                _BUSY,
                "filter_bytes_max",
                "bytes",
                "group",
            ),
            Limit("answers that slow readers leave", "proxy.receive.unsent_bytes_max", _BUSY, shared="client"),
            Limit("handles that a proxy renews", "proxy.renewal.handles_max", _BUSY, shared="client"),
            Limit(
                "topics and groups whose polls are counted",
                "popwheel_proxy.receive.mode_choice:COUNTED_MAX",
                "polls of others are notified",
                "counted_polls_max",
            ),
            Limit(
                "topics and groups that brokers learn to be read, in a minute",
                "popwheel_proxy.receive.notifications:_READERS_MAX",
                "their lag counts the queues they have read",
                "readers_max",
            ),
            Limit(
                "lite topics that a client reads of a topic",
                "popwheel_proxy.session.telemetry:LITE_SUBSCRIPTIONS_MAX",
                "LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
                "lite_subscriptions_max",
            ),
            Limit(
                "the same in all",
                "popwheel_proxy.lite.lite_subscriptions:TOTAL_MAX",
                "LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
                "lite_subscriptions_total_max",
                shared="group",
            ),
            Limit(
                "groups and topics for which a client reads some",
                "popwheel_proxy.lite.lite_subscriptions:PAIRS_OF_CLIENT_MAX",
                "LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
                "lite_pairs_per_client_max",
            ),
        ),
    ),
    "Sending and clients": (
        "At a proxy. Each worker of `--workers` has these limits for itself.",
        (
            Limit("messages that wait for a broker", "proxy.send.waiting_messages_max", _BUSY, shared="topic"),
            Limit("their bytes", "proxy.send.waiting_bytes_max", _BUSY, shared="topic"),
            Limit(
                "calls parked while a broker group has no master",
                "popwheel_proxy.brokers.parked_calls:PARKED_CALLS_MAX",
                _BUSY,
                "parked_calls_max",
            ),
            Limit(
                "their bytes",
                "popwheel_proxy.brokers.parked_calls:PARKED_BYTES_MAX",
                _BUSY,
                "parked_bytes_max",
            ),
            Limit("clients known", "proxy.client.sessions_max", _BUSY),
            Limit(
                "Telemetry streams of a client",
                "popwheel_proxy.session.telemetry:_STREAMS_PER_CLIENT_MAX",
                _BUSY,
                "telemetry_streams_per_client_max",
            ),
            Limit(
                "new SQL92 filters that wait to be read",
                "popwheel_proxy.protocol.filters:WAITING_MAX",
                _BUSY,
                "waiting_filters_max",
                shared="client",
            ),
            Limit(
                "producers and topics of which they can be asked",
                "popwheel_proxy.session.producer_book:PAIRS_MAX",
                "they are not asked",
                "producer_topics_max",
            ),
            Limit(
                "questions that wait on clients' Telemetry streams",
                "popwheel_proxy.session.telemetry:_ASKED_BYTES_MAX",
                "asked later",
                "asked_bytes_max",
            ),
            Limit(
                "settings kept to be sent a second time",
                "popwheel_proxy.session.telemetry:_REPEATED_BYTES_MAX",
                "they are sent once",
                "repeated_bytes_max",
                shared="client",
            ),
        ),
    ),
    "Broker and controller": (
        "Each has a gauge of what it bounds ([metrics](metrics.md)).",
        (
            Limit("topics", "controller.topics_max", _BUSY),
            Limit("groups", "controller.groups_max", _BUSY),
            Limit("broker groups", "controller.broker_groups_max", _BUSY),
            Limit("queues of a broker", "broker.log.queues_max", _BUSY),
            Limit("open transactions", "broker.transaction.open_max", _BUSY, shared="topic"),
            Limit("messages delivered and not acknowledged", "broker.pop.open_messages_max", _BUSY, shared="group"),
            Limit(
                "messages blocked for FIFO groups", "broker.pop.held_messages_max", "no more is read", shared="group"
            ),
            Limit("pulls that wait", "broker.pop.pulls_waiting_max", _BUSY, shared="group"),
            Limit("pairs of a group and a queue that it has read", "broker.pop.progress_max", _BUSY, shared="group"),
            Limit(
                "interests of which a broker notifies",
                "broker.pop.notify_interests_max",
                "its polls look once a second",
                shared="group",
            ),
            Limit(
                "bytes of their filters",
                "broker.pop.notify_filter_bytes_max",
                "its polls look once a second",
                shared="group",
            ),
            Limit("lite topics", "broker.lite.topics_max", "LITE_TOPIC_QUOTA_EXCEEDED", shared="topic"),
            Limit(
                "pairs of a client and a lite topic that it reads",
                "broker.lite.subscriptions_max",
                "LITE_SUBSCRIPTION_QUOTA_EXCEEDED",
                shared="group",
            ),
            Limit("bytes that wait for the disk", "broker.waiting_bytes_max", _BUSY),
            Limit("poison messages in the quarantine", "broker.quarantine_max", "it waits where it is", shared="topic"),
            Limit("delivery events kept", "broker.pop.events_max", "the oldest go"),
            Limit(
                "names deleted by hand that rest for a day",
                "popwheel_controller.cluster.deleted_names:DELETED_BYTES_MAX",
                "the oldest may be made on first use",
            ),
            Limit("series of a metric", "popwheel_common.series:SERIES_MAX", "others count as `(other)`"),
            Limit(
                "log lines that wait to be written", "popwheel_common.log_writer:BUFFER_BYTES_MAX", "lost, and counted"
            ),
        ),
    ),
    "Delayed messages": (
        "At a broker.",
        (
            Limit("how far ahead", "broker.timer.delay_ms_max", "ILLEGAL_DELIVERY_TIME"),
            Limit("pending", "broker.timer.timers_max", _BUSY, shared="topic"),
            Limit("due within one second", "broker.timer.timers_per_slot_max", _BUSY, shared="topic"),
            Limit("recalls remembered", "broker.timer.recalls_max", _BUSY, shared="topic"),
        ),
    ),
    "HTTP": (
        "Health, metrics and the admin API, in every process.",
        (
            Limit("connections", "http.connections_max", "the one idle for longest is closed"),
            Limit("time for a request to come in", "popwheel_common.web.connections:READ_S_MAX", "408, closed"),
            Limit("time to take an answer", "popwheel_common.web.connections:TAKE_S_MAX", "closed"),
            Limit("body", "popwheel_common.web.gate:BODY_BYTES_MAX", "413"),
            Limit("body of a message that is sent", "popwheel_controller.http.new_message:REQUEST_BYTES_MAX", "413"),
            Limit("head of a request", "popwheel_common.web.connections:HEAD_BYTES_MAX", "431"),
            Limit("headers", "popwheel_common.web.gate:HEADERS_MAX", "431"),
            Limit("requests answered at the same time, health left out", "popwheel_common.web.gate:AT_ONCE_MAX", "429"),
            Limit("rows of a page", "popwheel_controller.http.pages:LISTED_MAX", "400; `next` says where to go on"),
            Limit("topics and groups that a call defines", "popwheel_controller.http.definitions:ENTRIES_MAX", "400"),
            Limit("tails of topics open at a controller", "popwheel_controller.http.tails:AT_ONCE_MAX", "429"),
            Limit(
                "messages a second that a tail shows",
                "popwheel_controller.http.tail_pace:RATE_MAX",
                "left out, and counted",
            ),
        ),
    ),
    "Transport": (
        "gRPC for clients; `popwheel_rpc_limit_hits_total{limit}` counts these.",
        (
            Limit("connections", "rpc:connections_max", "closed at once"),
            Limit("calls of a connection", "rpc:concurrent_streams_max", "REFUSED_STREAM"),
            Limit("one request", "rpc:message_bytes_max", "RESOURCE_EXHAUSTED"),
            Limit("headers of a call", "rpc:header_list_bytes_max", "RESOURCE_EXHAUSTED"),
            Limit("unsent bytes of a connection", "rpc:send_buffer_bytes_max", "closed"),
            Limit("bytes of unfinished requests of a connection", "rpc:receive_buffer_bytes_max", "UNAVAILABLE"),
            Limit("unsent bytes of all", "rpc:send_total_bytes_max", "connections that read nothing are closed first"),
            Limit("bytes of unfinished requests of all", "rpc:receive_total_bytes_max", "the largest get UNAVAILABLE"),
            Limit("time until a connection speaks", "rpc:preface_timeout_s", "closed"),
            Limit("silence before a connection is pinged", "rpc:keepalive_interval_s", "pinged"),
            Limit("time to answer that", "rpc:keepalive_timeout_s", "closed"),
            Limit("time that a reader takes nothing", "rpc:stalled_timeout_s", "closed"),
        ),
    ),
}

_HEAD = """\
Everything that a client can make the server hold has a limit. Past it the client gets a named [status](statuses.md) and
a sentence, and a refused request changes nothing. Where *set by* has a setting, the value is its default
([options](options.md)); *fixed* limits are constants. `popwheel_proxy_limit_hits_total{limit}` counts refusals of
proxies. Its label is the setting without `proxy.`, or the name beside *fixed*. (s): shared, see [shares](#shares).
[What hostile clients can do](../operate/access.md) has counts per ten seconds.
"""

_OTHER_USES = """\
All other uses are refused with ILLEGAL_TOPIC. A retry topic's TOPIC is a topic or a dead letter topic. A resource of
the namespace `shop` has `shop%` before its name, as with RocketMQ.
"""

_SHARES = """\
## Shares

A limit that is *shared* by groups, topics or clients follows one rule ([record
19](../decisions/0019-shares-and-the-time-of-the-log.md)): **nobody may take more than is free**.

```
 limit 1,000    first group hoards:  500 taken            500 free
                second group:        250 taken            250 free
                any other group still finds room
```

The refusal is TOO_MANY_REQUESTS. It names the limit, who asks, and how much that one has. Queues, topics and groups
have no owner: [access rules](../operate/access.md) say who may make them.

**Refused polls.** A broker may refuse a poll, or the poll's queue may stand still at a damaged record. The proxy then
holds the poll for as long as an empty one, and looks five times a second. If it finds nothing, the client gets the
refusal. So no client polls in a hot loop, and none takes a refusal for an empty queue.
"""

_NAMES = """\
## Names

Every name from outside passes one gate before anything else sees it. A text that is no name is refused and changes
nothing: no topic is made, and no metric's label.

| name of | characters |
|---|---|
| a topic | 1 to 127 letters, digits, `%`, `_`, `-`; it begins like none of the other kinds |
| a group | 1 to 120 letters, digits, `%`, `_`, `-` |
| a broker group, a cluster | 1 to 64 letters, digits, `_`, `-` |
| a lite topic | 1 to 64 letters, digits, `%`, `_`, `-` |
"""

_FORMS = {
    Kind.USER: "1 to 127 characters",
    Kind.RETRY: "`%RETRY%GROUP+TOPIC`",
    Kind.DEAD_LETTER: "`%DLQ%GROUP`",
    Kind.SYSTEM: "`rmq_sys_...`",
    Kind.LITE: "`TOPIC+LITE`",
}


def limits_page() -> str:
    """The whole page, in Markdown."""
    settings = _settings()
    parts = [
        f"## {title}\n\n{text}\n\n"
        + table(("limit", "value", "set by", "past it"), (_row(limit, settings) for limit in limits))
        for title, (text, limits) in SECTIONS.items()
    ]
    return "\n".join(
        [
            head(
                "Limits",
                "the settings and constants of the services",
                _HEAD,
            ),
            *parts,
            _SHARES,
            _NAMES,
            table(("kind of topic", "its names", *(_WORDS[use] for use in Use)), map(_names_row, Kind)),
            _OTHER_USES,
        ]
    )


def labels() -> set[str]:
    """The names under which this page says that a proxy counts limits."""
    rows = [limit for _, limits in SECTIONS.values() for limit in limits]
    return {limit.label or limit.source.removeprefix("proxy.") for limit in rows}


_WORDS = {
    Use.SEND: "sent to",
    Use.RECEIVE: "received from",
    Use.PULL: "pulled",
    Use.QUERY: "queried",
    Use.COMMIT: "committed",
    Use.CREATE: "made, deleted",
}


def _names_row(kind: Kind) -> tuple[str, ...]:
    uses = ("yes" if use in USES[kind] else "no" for use in Use)
    return (kind.value.removeprefix("a "), _FORMS[kind], *uses)


def _settings() -> dict[str, str]:
    return {field.key: field.default for field in option_fields(ClusterOptions)}


def _row(limit: Limit, settings: dict[str, str]) -> tuple[str, str, str, str]:
    module, _, name = limit.source.partition(":")
    if not name:
        number, by = float(settings[limit.source]), f"`{limit.source}`"
    elif module == "rpc":
        number, by = float(getattr(client_limits(ProxyOptions()), name)), f"`{name}`"
    else:
        number = float(getattr(importlib.import_module(module), name))
        by = f"fixed, `{limit.label}`" if limit.label else "fixed"
    value = _value(number, limit.unit or name or limit.source)
    return limit.what, value, by + (f" (s, {limit.shared})" if limit.shared else ""), limit.past


def _value(number: float, name: str) -> str:
    if re.search(r"bytes", name, re.IGNORECASE):
        for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
            if number >= size:
                return f"{number / size:.3g} {unit}"
        return f"{number:.0f} bytes"
    if re.search(r"(^|_)(ms|s|timeout_s|interval_s)(_|$)", name, re.IGNORECASE):
        seconds = number / 1000 if re.search(r"_ms(_|$)", name, re.IGNORECASE) else number
        for unit, size in (("days", 2 * 86_400), ("h", 3_600), ("min", 60)):
            if seconds >= size:
                return f"{seconds / (86_400 if unit == 'days' else size):.3g} {unit}"
        return f"{seconds:.3g} s"
    return f"{number:,.0f}"
