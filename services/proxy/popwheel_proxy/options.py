"""Options of a proxy, with their limits; the defaults fit one machine."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from popwheel_common.contract.names import PROCESS_NAME_PATTERN
from popwheel_common.settings.advertised_address import AdvertisedAddress

_KIB = 1024
_MIB = 1024 * 1024


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsOptions(_Section):
    """The certificate shown to clients that begin with TLS."""

    certificate_file: str = Field(
        default="",
        description="PEM file of the certificate chain; empty: a self-signed one is made. Changed files are taken "
        "over.",
    )
    key_file: str = Field(default="", description="PEM file of the private key that belongs to the certificate.")

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if bool(self.certificate_file) != bool(self.key_file):
            raise ValueError("certificate_file and key_file belong together: give both or none")
        return self


class TransportLimits(_Section):
    """Limits of the listener, applied before any handler."""

    connections_max: int = Field(
        default=20_000,
        ge=1,
        description="Connections at one time; further ones are closed at once. Fewer where the process may not open "
        "as many files.",
    )
    streams_per_connection_max: int = Field(
        default=1_000, ge=1, description="Calls at one time on one connection (SETTINGS_MAX_CONCURRENT_STREAMS)."
    )
    request_bytes_max: int = Field(
        default=8 * _MIB,
        ge=64 * _KIB,
        description="Size of one request; well above `message.body_bytes_max`, so that a body that is too large gets "
        "a status.",
    )
    unsent_bytes_per_connection_max: int = Field(
        default=16 * _MIB, ge=64 * _KIB, description="Bytes kept for one connection whose client reads slowly."
    )
    unsent_bytes_max: int = Field(
        default=512 * _MIB,
        ge=_MIB,
        description="Bytes kept for all slow readers; beyond it those who read nothing, then those with most, are "
        "disconnected.",
    )
    unfinished_bytes_max: int = Field(
        default=512 * _MIB,
        ge=_MIB,
        description="Bytes kept of all requests that are not whole; beyond it those that have most are refused with "
        "UNAVAILABLE.",
    )
    handshake_timeout_ms: int = Field(
        default=10_000, ge=100, description="A new connection that has not begun to speak HTTP/2 by then is closed."
    )
    keepalive_interval_ms: int = Field(
        default=20_000,
        ge=0,
        description="A client that was silent for this long is asked for a sign of life; 0: never.",
    )
    keepalive_timeout_ms: int = Field(
        default=10_000, ge=100, description="Time that its answer may take before its connection is closed."
    )


class MessageLimits(_Section):
    """Limits of a message, and of a request that carries messages."""

    body_bytes_max: int = Field(
        default=4 * _MIB, ge=1, description="Size of a body; also sent to the clients as `max_body_size`."
    )
    batch_messages_max: int = Field(default=128, ge=1, description="Messages in one SendMessage.")
    user_properties_max: int = Field(default=128, ge=0, description="Number of a message's user properties.")
    user_properties_bytes_max: int = Field(
        default=16 * _KIB, ge=0, description="Size of all names and values of a message's user properties."
    )
    system_properties_bytes_max: int = Field(
        default=16 * _KIB,
        ge=256,
        description="Size of the message's own properties: keys, tag, group, trace context ...",
    )
    id_length_max: int = Field(default=255, ge=34, description="Characters of a message id.")


class SendOptions(_Section):
    """Options for sends to the brokers."""

    put_messages_max: int = Field(default=512, ge=1, description="Messages that join one Put to a broker.")
    put_bytes_max: int = Field(
        default=4 * _MIB,
        ge=64 * _KIB,
        description="Bytes that join one Put (a single larger request still goes, alone).",
    )
    put_timeout_ms: int = Field(
        default=5_000, ge=100, description="Time that one Put may take before its outcome counts as unknown."
    )
    waiting_messages_max: int = Field(
        default=20_000, ge=1, description="Messages that wait for one broker; further ones get TOO_MANY_REQUESTS."
    )
    waiting_bytes_max: int = Field(
        default=64 * _MIB,
        ge=_MIB,
        description="Bytes that wait for one broker; further messages get TOO_MANY_REQUESTS.",
    )


class FailoverOptions(_Section):
    """Calls that are parked while a broker group has no master, or does not answer."""

    hold_ms: int = Field(
        default=10_000,
        ge=0,
        description="Longest time for which a call is parked, if its client waits that long; 0: not at all.",
    )


class ReceiveOptions(_Section):
    """Options for deliveries to consumers."""

    batch_messages_max: int = Field(
        default=32, ge=1, description="Messages in one answer; a client that asks for more gets this many."
    )
    acknowledgements_max: int = Field(default=1_024, ge=1, description="Entries in one AckMessage.")
    invisible_ms_min: int = Field(
        default=10_000, ge=0, description="The shortest invisible duration a consumer may ask for."
    )
    invisible_ms_max: int = Field(
        default=12 * 3600 * 1000, ge=1, description="The longest invisible duration a consumer may ask for."
    )
    pop_timeout_ms: int = Field(
        default=3_000, ge=100, description="Time that one Pop, Ack or similar call at a broker may take."
    )
    polls_per_client_max: int = Field(
        default=1_024, ge=1, description="Polls of one client id at one time; further ones get TOO_MANY_REQUESTS."
    )
    polls_per_connection_max: int = Field(
        default=2_048, ge=1, description="Polls of one connection at one time; further ones get TOO_MANY_REQUESTS."
    )
    polls_max: int = Field(default=50_000, ge=1, description="Polls at one time; further ones get TOO_MANY_REQUESTS.")
    interests_max: int = Field(
        default=50_000,
        ge=1,
        description="Different (topic, group, filter) that are polled for at one time; further ones get "
        "TOO_MANY_REQUESTS.",
    )
    interest_idle_ms: int = Field(
        default=10_000,
        ge=0,
        description="Time for which brokers go on notifying for a (topic, group, filter) that no poll waits for.",
    )
    unsent_bytes_max: int = Field(
        default=256 * _MIB,
        ge=_MIB,
        description="Bytes of answers that slow readers have not taken; further polls get TOO_MANY_REQUESTS until it "
        "falls.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.invisible_ms_min > self.invisible_ms_max:
            raise ValueError("invisible_ms_min must not be above invisible_ms_max")
        return self


class AdaptiveOptions(_Section):
    """Options for the switch of a topic and group between kinds of polls, with `poll_mode: auto`."""

    up_per_s: int = Field(
        default=1_000,
        ge=1,
        description="Polls per second of a topic and group from which on they are plain: each waits at one broker.",
    )
    down_per_s: int = Field(
        default=500, ge=1, description="Polls per second below which they wait to be notified by all brokers again."
    )
    stay_ms: int = Field(default=10_000, ge=0, description="Shortest time between two switches.")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.down_per_s >= self.up_per_s:
            raise ValueError("down_per_s must be below up_per_s")
        return self


class RenewalOptions(_Section):
    """Receives with auto_renew: the proxy keeps their messages invisible while the client lives."""

    invisible_ms: int = Field(
        default=60_000,
        ge=3_000,
        description="Invisible duration of such a receive and of every renewal; renewed whenever a third of it has "
        "passed.",
    )
    longest_ms: int = Field(
        default=3 * 3600 * 1000,
        ge=1_000,
        description="A message is not renewed for longer than this, counted from its receive.",
    )
    handles_max: int = Field(
        default=200_000,
        ge=1,
        description="Handles kept renewed at one time; further receives with auto_renew get TOO_MANY_REQUESTS.",
    )


class ClientOptions(_Section):
    """Options for clients, and the settings that are sent to them."""

    expiry_ms: int = Field(
        default=60_000,
        ge=1_000,
        description="A client that has not called for this long is gone (the Rust client beats every 30 s).",
    )
    grace_ms: int = Field(
        default=15_000,
        ge=1_000,
        description="Time without a call after which a client is gone whose last Telemetry stream or poll has "
        "broken.\n\nThe Rust client opens no Telemetry stream anew, and beats every 30 s: 35000 suits it better.",
    )
    sessions_max: int = Field(
        default=50_000, ge=1, description="Client ids known at one time; further ones get TOO_MANY_REQUESTS."
    )
    settings_repeat_ms: int = Field(
        default=1_000,
        ge=0,
        description="Settings are sent a second time after this long: a Node client loses the first ones while it "
        "starts; 0: never.",
    )
    send_max_attempts: int = Field(default=3, ge=1, description="Number of tries of a producer for a send.")


class ProxyOptions(_Section):
    """Options of one proxy."""

    grpc_host: str = Field(default="127.0.0.1", description="Address on which clients are served.")
    grpc_port: int = Field(
        default=8081,
        ge=0,
        le=65535,
        description="Port on which clients are served, TLS and plain text alike; 0: any free one.",
    )
    http_host: str = Field(default="127.0.0.1", description="Address of /healthz, /readyz and /metrics.")
    http_port: int = Field(
        default=8091, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics; 0: any free one."
    )
    controller: str = Field(
        default="127.0.0.1:8083",
        description="host:port of the controller; of several, all of them with commas between: the one that leads is "
        "asked.",
    )
    name: str = Field(
        default="",
        pattern=PROCESS_NAME_PATTERN,
        description="Name of this proxy in logs and status pages; empty: made of host and port.",
    )
    advertised_address: str = Field(
        default="",
        description="host, host:port or :port under which clients reach the proxies. No host: the one they asked "
        "with; no port: `grpc_port` with a host, else the one they asked with.",
    )
    transport: Literal["popwheel", "grpcio"] = Field(
        default="popwheel", description="Transport of the calls: our own HTTP/2 core, or grpcio's server."
    )
    auto_create_topics: bool = Field(
        default=False, description="Create a topic (of type MIXED) when a client asks for one that does not exist."
    )
    auto_create_groups: bool = Field(
        default=True, description="Create a consumer group when a client uses one that does not exist."
    )
    grpc_client_consumer_min_long_polling_timeout_ms: int = Field(
        default=5_000, ge=0, description="A poll that asks for less than this does not wait for messages."
    )
    grpc_client_consumer_max_long_polling_timeout_ms: int = Field(
        default=20_000, ge=1, description="Longest wait of a poll."
    )
    poll_mode: Literal["auto", "notify", "plain", "sliced"] = Field(
        default="auto",
        description="Kind of polls: notified by all brokers, plain at one, sliced round all; auto: notified if few, "
        "plain if many.",
    )
    redis_url: str = Field(
        default="",
        pattern=r"^(rediss?://.+|unix://.+)?$",
        description="Redis where proxies add up their polls for `poll_mode: auto`: redis://host:port/database; "
        "empty: each for itself.",
    )
    tls: TlsOptions = Field(default=TlsOptions(), description="Certificate for clients that use TLS.")
    limits: TransportLimits = Field(default=TransportLimits(), description="Limits of connections and requests.")
    message: MessageLimits = Field(default=MessageLimits(), description="Limits of messages and names.")
    send: SendOptions = Field(default=SendOptions(), description="Sending to the brokers.")
    failover: FailoverOptions = Field(
        default=FailoverOptions(), description="Holding calls while a broker group changes its master."
    )
    receive: ReceiveOptions = Field(default=ReceiveOptions(), description="Receiving and acknowledging.")
    adaptive: AdaptiveOptions = Field(default=AdaptiveOptions(), description="Switches between kinds of polls.")
    renewal: RenewalOptions = Field(
        default=RenewalOptions(), description="Keeping messages invisible for clients that asked for it."
    )
    client: ClientOptions = Field(
        default=ClientOptions(), description="Options for clients, and the settings that are sent to them."
    )

    @field_validator("advertised_address")
    @classmethod
    def _is_address(cls, value: str) -> str:
        AdvertisedAddress.parse(value)
        return value

    @property
    def advertised(self) -> AdvertisedAddress:
        """Parts of the advertised address."""
        return AdvertisedAddress.parse(self.advertised_address)

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
