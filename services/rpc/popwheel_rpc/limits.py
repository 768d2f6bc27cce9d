"""Limits of the transport, and the counter behind those that are rates."""

from dataclasses import dataclass
from typing import Final

MIB = 2**20

WINDOW_DEFAULT: Final = 65_535
"""A window of HTTP/2 in the beginning, in bytes (RFC 9113, 6.9.2)."""

WINDOW_MAX: Final = 2**31 - 1
"""The widest that there can be, in bytes (RFC 9113, 6.9.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that one server or client sets to the other side (invariant M1: all memory is bounded by configuration).

    The name of each is also the name under which going past it is reported to `RpcObserver.limit_hit`.

    Args:
        connections_max: connections of one server; one more is closed at once.
        concurrent_streams_max: calls of one connection that run at a time, also those whose caller has just cancelled.
        message_bytes_max: one message, in either direction of a call.
        receive_buffer_bytes_max: bytes of one connection that were received and not yet taken by handlers.
        send_buffer_bytes_max: bytes of one connection to a client that wait because it reads slowly or gives no window.
        receive_total_bytes_max: bytes of requests that are not finished, with their headers, over all connections of a
            server; beyond it the connections with most of them lose calls. Two messages always have room, here and in
            the next one.
        send_total_bytes_max: bytes that wait for readers over all connections of a server; beyond it connections are
            closed: stalled ones first, then those for which most waits.
        header_list_bytes_max: the headers of one call, each with 32 bytes more than name and value.
        continuations_max: CONTINUATION frames of one header block.
        connection_window_bytes: what may be under way to us on one connection.
        stream_window_bytes: what may be under way to us on one stream and wait for its handler.
        flood_window_s: the time over which the counts below are taken.
        resets_max: streams that the other side resets, or makes us reset, in that time (rapid reset).
        pings_max: PING frames in that time.
        settings_max: SETTINGS frames in that time.
        priorities_max: PRIORITY frames in that time, and frames of unknown types.
        window_updates_max: WINDOW_UPDATE frames in that time.
        empty_frames_max: DATA frames without data in that time.
        preface_timeout_s: until when a new connection must have sent its preface (and, with TLS, shaken hands).
        stalled_timeout_s: how long bytes may wait for a reader that takes none at all.
        idle_timeout_s: how long a connection may have no call before it is asked to go; 0 = for ever.
        keepalive_interval_s: after how long a silence the other side is pinged; 0 = never.
        keepalive_timeout_s: how long its answer may take.
        stream_messages_max: messages that wait in one direction of a stream of the same process.

    Raises:
        ValueError: the windows are impossible.
    """

    connections_max: int = 10_000
    concurrent_streams_max: int = 4096
    message_bytes_max: int = 8 * MIB
    receive_buffer_bytes_max: int = 64 * MIB
    send_buffer_bytes_max: int = 32 * MIB
    receive_total_bytes_max: int = 512 * MIB
    send_total_bytes_max: int = 512 * MIB
    header_list_bytes_max: int = 16_384
    continuations_max: int = 16
    connection_window_bytes: int = 16 * MIB
    stream_window_bytes: int = 1 * MIB
    flood_window_s: float = 10.0
    resets_max: int = 10_000
    pings_max: int = 2_000
    settings_max: int = 200
    priorities_max: int = 2_000
    window_updates_max: int = 200_000
    empty_frames_max: int = 2_000
    preface_timeout_s: float = 10.0
    stalled_timeout_s: float = 60.0
    idle_timeout_s: float = 0.0
    keepalive_interval_s: float = 60.0
    keepalive_timeout_s: float = 20.0
    stream_messages_max: int = 16

    def __post_init__(self) -> None:
        if not WINDOW_DEFAULT <= self.connection_window_bytes <= WINDOW_MAX:
            raise ValueError(f"connection_window_bytes must be {WINDOW_DEFAULT} to {WINDOW_MAX}: HTTP/2 begins there")
        if not 0 < self.stream_window_bytes <= WINDOW_MAX:
            raise ValueError(f"stream_window_bytes must be 1 to {WINDOW_MAX}")

    @property
    def buffered_bytes_max(self) -> int:
        """`receive_buffer_bytes_max`, but at least enough for one message."""
        return max(self.receive_buffer_bytes_max, self.message_bytes_max + 2 * self.connection_window_bytes)

    @property
    def backlog_bytes_max(self) -> int:
        """`send_buffer_bytes_max`, but at least enough for one answer."""
        return max(self.send_buffer_bytes_max, 2 * self.message_bytes_max)


class FloodCounter:
    """Counter of one kind of event in consecutive windows of time.

    Args:
        count_max: as many are allowed in one window.
        window_s: its length.
    """

    __slots__ = ("_count", "_count_max", "_until", "_window_s")

    def __init__(self, count_max: int, window_s: float) -> None:
        self._count_max = count_max
        self._window_s = window_s
        self._count = 0
        self._until = 0.0

    def hit(self, now: float) -> bool:
        """Count one event; return whether that is more than allowed.

        Args:
            now: seconds of the monotonic clock.
        """
        if now >= self._until:
            self._until = now + self._window_s
            self._count = 0
        self._count += 1
        return self._count > self._count_max
