"""Options of a proxy, with their limits; the defaults fit one machine."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from popwheel_common.contract.names import PROCESS_NAME_PATTERN

_KIB = 1024
_MIB = 1024 * 1024

Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TlsOptions(_Section):
    """The certificate shown to clients that begin with TLS."""

    certificate_file: str = ""
    """PEM file of the certificate chain; empty: a self-signed one is made. Changed files are taken over."""
    key_file: str = ""
    """PEM file of the private key that belongs to the certificate."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file belong together: give both or none")
        return self


class TransportLimits(_Section):
    """Limits of the listener, applied before any handler."""

    connections_max: Positive = 20_000
    """Connections at one time; further ones are closed at once. Fewer where the process may not open as many files."""
    streams_per_connection_max: Positive = 1_000
    """Calls at one time on one connection (SETTINGS_MAX_CONCURRENT_STREAMS)."""
    request_bytes_max: Annotated[int, Field(ge=64 * _KIB)] = 8 * _MIB
    """Size of one request; well above `message.body_bytes_max`, so that a body that is too large gets a status."""
    unsent_bytes_per_connection_max: Annotated[int, Field(ge=64 * _KIB)] = 16 * _MIB
    """Bytes kept for one connection whose client reads slowly."""
    unsent_bytes_max: Annotated[int, Field(ge=_MIB)] = 512 * _MIB
    """Bytes kept for all slow readers; beyond it those who read nothing, then those with most, are disconnected."""
    unfinished_bytes_max: Annotated[int, Field(ge=_MIB)] = 512 * _MIB
    """Bytes kept of all requests that are not whole; beyond it those that have most are refused with UNAVAILABLE."""
    handshake_timeout_ms: Annotated[int, Field(ge=100)] = 10_000
    """A new connection that has not begun to speak HTTP/2 by then is closed."""
    keepalive_interval_ms: Annotated[int, Field(ge=0)] = 20_000
    """A client that was silent for this long is asked for a sign of life; 0: never."""
    keepalive_timeout_ms: Annotated[int, Field(ge=100)] = 10_000
    """Time that its answer may take before its connection is closed."""


class MessageLimits(_Section):
    """Limits of a message, and of a request that carries messages."""

    body_bytes_max: Annotated[int, Field(ge=1)] = 4 * _MIB
    """Size of a body; also sent to the clients as `max_body_size`."""
    batch_messages_max: Positive = 128
    """Messages in one SendMessage."""
    user_properties_max: Annotated[int, Field(ge=0)] = 128
    """Number of a message's user properties."""
    user_properties_bytes_max: Annotated[int, Field(ge=0)] = 16 * _KIB
    """Size of all names and values of a message's user properties."""
    system_properties_bytes_max: Annotated[int, Field(ge=256)] = 16 * _KIB
    """Size of the message's own properties: keys, tag, group, trace context ..."""
    id_length_max: Annotated[int, Field(ge=34)] = 255
    """Characters of a message id."""


class SendOptions(_Section):
    """Options for sends to the brokers."""

    put_messages_max: Positive = 512
    """Messages that join one Put to a broker."""
    put_bytes_max: Annotated[int, Field(ge=64 * _KIB)] = 4 * _MIB
    """Bytes that join one Put (a single larger request still goes, alone)."""
    put_timeout_ms: Annotated[int, Field(ge=100)] = 5_000
    """Time that one Put may take before its outcome counts as unknown."""
    waiting_messages_max: Positive = 20_000
    """Messages that wait for one broker; further ones get TOO_MANY_REQUESTS."""
    waiting_bytes_max: Annotated[int, Field(ge=_MIB)] = 64 * _MIB
    """Bytes that wait for one broker; further messages get TOO_MANY_REQUESTS."""


class FailoverOptions(_Section):
    """Calls that are parked while a broker group has no master, or does not answer."""

    hold_ms: Annotated[int, Field(ge=0)] = 10_000
    """Longest time for which a call is parked, if its client waits that long; 0: not at all."""


class ReceiveOptions(_Section):
    """Options for deliveries to consumers."""

    batch_messages_max: Positive = 32
    """Messages in one answer; a client that asks for more gets this many."""
    acknowledgements_max: Positive = 1_024
    """Entries in one AckMessage."""
    invisible_ms_min: Annotated[int, Field(ge=0)] = 10_000
    """The shortest invisible duration a consumer may ask for."""
    invisible_ms_max: Annotated[int, Field(ge=1)] = 12 * 3600 * 1000
    """The longest invisible duration a consumer may ask for."""
    pop_timeout_ms: Annotated[int, Field(ge=100)] = 3_000
    """Time that one Pop, Ack or similar call at a broker may take."""
    polls_per_client_max: Positive = 1_024
    """Polls of one client id at one time; further ones get TOO_MANY_REQUESTS."""
    polls_per_connection_max: Positive = 2_048
    """Polls of one connection at one time; further ones get TOO_MANY_REQUESTS."""
    polls_max: Positive = 50_000
    """Polls at one time; further ones get TOO_MANY_REQUESTS."""
    interests_max: Positive = 50_000
    """Different (topic, group, filter) that are polled for at one time; further ones get TOO_MANY_REQUESTS."""
    interest_idle_ms: Annotated[int, Field(ge=0)] = 10_000
    """Time for which brokers go on notifying for a (topic, group, filter) that no poll waits for."""
    unsent_bytes_max: Annotated[int, Field(ge=_MIB)] = 256 * _MIB
    """Bytes of answers that slow readers have not taken; further polls get TOO_MANY_REQUESTS until it falls."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.invisible_ms_min > self.invisible_ms_max:
            raise ValueError("invisible_ms_min must not be above invisible_ms_max")
        return self


class AdaptiveOptions(_Section):
    """Options for the switch of a topic and group between kinds of polls, with `poll_mode: auto`."""

    up_per_s: Positive = 1_000
    """Polls per second of a topic and group from which on they are plain: each waits at one broker."""
    down_per_s: Positive = 500
    """Polls per second below which they wait to be notified by all brokers again."""
    stay_ms: Annotated[int, Field(ge=0)] = 10_000
    """Shortest time between two switches."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.down_per_s >= self.up_per_s:
            raise ValueError("down_per_s must be below up_per_s")
        return self


class RenewalOptions(_Section):
    """Receives with auto_renew: the proxy keeps their messages invisible while the client lives."""

    invisible_ms: Annotated[int, Field(ge=3_000)] = 60_000
    """Invisible duration of such a receive and of every renewal; renewed whenever a third of it has passed."""
    longest_ms: Annotated[int, Field(ge=1_000)] = 3 * 3600 * 1000
    """A message is not renewed for longer than this, counted from its receive."""
    handles_max: Positive = 200_000
    """Handles kept renewed at one time; further receives with auto_renew get TOO_MANY_REQUESTS."""


class ClientOptions(_Section):
    """Options for clients, and the settings that are sent to them."""

    expiry_ms: Annotated[int, Field(ge=1_000)] = 60_000
    """A client that has not called for this long is gone (the Rust client beats every 30 s)."""
    grace_ms: Annotated[int, Field(ge=1_000)] = 15_000
    """Time without a call after which a client is gone whose last Telemetry stream or poll has broken.

    The Rust client opens no Telemetry stream anew, and beats every 30 s: 35000 suits it better.
    """
    sessions_max: Positive = 50_000
    """Client ids known at one time; further ones get TOO_MANY_REQUESTS."""
    settings_repeat_ms: Annotated[int, Field(ge=0)] = 1_000
    """Settings are sent a second time after this long: a Node client loses the first ones while it starts; 0: never."""
    send_max_attempts: Positive = 3
    """Number of tries of a producer for a send."""


class ProxyOptions(_Section):
    """Options of one proxy."""

    grpc_host: str = "127.0.0.1"
    """Address on which clients are served."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    """Port on which clients are served, TLS and plain text alike; 0: any free one."""
    http_host: str = "127.0.0.1"
    """Address of /healthz, /readyz and /metrics."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8091
    """Port of /healthz, /readyz and /metrics; 0: any free one."""
    controller: str = "127.0.0.1:8083"
    """host:port of the controller; of several, all of them with commas between: the one that leads is asked."""
    name: Annotated[str, Field(pattern=PROCESS_NAME_PATTERN)] = ""
    """Name of this proxy in logs and status pages; empty: made of host and port."""
    advertised_host: str = ""
    """Host name or address under which clients reach the proxies; empty: the address they asked with."""
    advertised_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port under which clients reach the proxies; 0: that of `grpc_port`."""
    transport: Literal["popwheel", "grpcio"] = "popwheel"
    """Transport of the calls: our own HTTP/2 core, or grpcio's server."""
    auto_create_topics: bool = False
    """Create a topic (of type MIXED) when a client asks for one that does not exist."""
    auto_create_groups: bool = True
    """Create a consumer group when a client uses one that does not exist."""
    grpc_client_consumer_min_long_polling_timeout_ms: Annotated[int, Field(ge=0)] = 5_000
    """A poll that asks for less than this does not wait for messages."""
    grpc_client_consumer_max_long_polling_timeout_ms: Annotated[int, Field(ge=1)] = 20_000
    """Longest wait of a poll."""
    poll_mode: Literal["auto", "notify", "plain", "sliced"] = "auto"
    """Kind of polls: notified by all brokers, plain at one, sliced round all; auto: notified if few, plain if many."""
    redis_url: Annotated[str, Field(pattern=r"^(rediss?://.+|unix://.+)?$")] = ""
    """Redis where proxies add up their polls for `poll_mode: auto`: redis://host:port/database; empty: each for itself.
    """
    tls: TlsOptions = TlsOptions()
    """Certificate for clients that use TLS."""
    limits: TransportLimits = TransportLimits()
    """Limits of connections and requests."""
    message: MessageLimits = MessageLimits()
    """Limits of messages and names."""
    send: SendOptions = SendOptions()
    """Sending to the brokers."""
    failover: FailoverOptions = FailoverOptions()
    """Holding calls while a broker group changes its master."""
    receive: ReceiveOptions = ReceiveOptions()
    """Receiving and acknowledging."""
    adaptive: AdaptiveOptions = AdaptiveOptions()
    """Switches between kinds of polls."""
    renewal: RenewalOptions = RenewalOptions()
    """Keeping messages invisible for clients that asked for it."""
    client: ClientOptions = ClientOptions()
    """Options for clients, and the settings that are sent to them."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        shortest = self.grpc_client_consumer_min_long_polling_timeout_ms
        if shortest > self.grpc_client_consumer_max_long_polling_timeout_ms:
            raise ValueError(
                "grpc_client_consumer_min_long_polling_timeout_ms must not be above "
                "grpc_client_consumer_max_long_polling_timeout_ms"
            )
        if self.limits.request_bytes_max < self.message.body_bytes_max + 64 * _KIB:
            raise ValueError("limits.request_bytes_max must leave 64 KiB of room above message.body_bytes_max")
        return self
