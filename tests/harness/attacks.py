"""Attacks on HTTP/2 by name: what each of them sends, and at which limit it ends.

The public names and numbers: the HTTP/2 attacks of 2019 (CVE-2019-9511 to 9518), CONTINUATION floods (CVE-2024-27316
and others), rapid reset (CVE-2023-44487), MadeYouReset (CVE-2025-8671).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from popwheel_rpc.http2 import frames, grpc_messages, hpack
from popwheel_rpc.http2.frames import ErrorCode
from popwheel_rpc.limits import WINDOW_DEFAULT

FRAMES = 12_000
"""As many frames an attack has, or calls: more than any limit of frames in a window of time."""

_BIG = 2**31 - 1


@dataclass(frozen=True)
class Target:
    """Methods of the server that is attacked.

    Args:
        stream: path of a method that waits for messages for as long as its caller stays.
        unary: path of a method that answers at once with much.
        request: what `unary` is asked.
    """

    stream: str
    unary: str
    request: bytes

    def headers(self, number: int, path: str, *more: hpack.Field, end: bool = False) -> bytes:
        """HEADERS of the call with this number, from 0."""
        block = hpack.encode([*_head(path), *more])
        return frames.headers(2 * number + 1, block, frames.END_STREAM if end else 0, frames.FRAME_BYTES_MAX)

    def ask(self, number: int) -> bytes:
        """A whole call of `unary`."""
        message = grpc_messages.frame_message(self.request)
        parts = [message[at : at + frames.FRAME_BYTES_DEFAULT] for at in range(0, len(message), 16_384)]
        sent = [self.headers(number, self.unary)]
        sent += [frames.frame(frames.DATA, 0, 2 * number + 1, part) for part in parts[:-1]]
        return b"".join([*sent, frames.frame(frames.DATA, frames.END_STREAM, 2 * number + 1, parts[-1])])


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        name: for people.
        number: of the vulnerability that made it known, if it has one.
        limit: at which it ends, as it stands in `popwheel_rpc_limit_hits_total`.
        frames: what is sent after the handshake.
        settings: what the attacker says of himself.
        reads: whether he takes what the server sends.
        closes: whether the connection is closed for it.
        held_mib: what one such connection may make the server hold.
    """

    name: str
    number: str
    limit: str
    frames: Callable[[Target], Iterator[bytes]]
    settings: dict[int, int] = field(default_factory=lambda: {frames.SETTING_INITIAL_WINDOW_SIZE: _BIG})
    reads: bool = True
    closes: bool = True
    in_use_mib: int = 6

    def start(self) -> bytes:
        """The handshake."""
        wide = frames.window_update(0, _BIG - WINDOW_DEFAULT)
        return frames.PREFACE + frames.settings(self.settings) + wide


def _head(path: str) -> list[hpack.Field]:
    return [
        *((b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"attack")),
        *((b"te", b"trailers"), (b"content-type", b"application/grpc"), (b"x-mq-client-id", b"attack")),
    ]


def _rapid_reset(target: Target) -> Iterator[bytes]:
    for number in range(FRAMES):
        yield target.headers(number, target.stream) + frames.rst_stream(2 * number + 1, ErrorCode.CANCEL)


def _made_you_reset(target: Target) -> Iterator[bytes]:
    for number in range(FRAMES):
        stream = 2 * number + 1
        opened = target.headers(number, target.stream)
        match number % 4:
            case 0:
                yield opened + frames.window_update(stream, 0)
            case 1:
                yield opened + frames.window_update(stream, _BIG)
            case 2:
                short = target.headers(number, target.stream, (b"content-length", b"1"))
                yield short + frames.frame(frames.DATA, 0, stream, b"long")
            case _:
                ended = target.headers(number, target.stream, end=True)
                yield ended + frames.frame(frames.DATA, frames.END_STREAM, stream, b"late")


def _empty_continuations(target: Target) -> Iterator[bytes]:
    yield frames.frame(frames.HEADERS, 0, 1, hpack.encode(_head(target.stream)))
    for _ in range(FRAMES):
        yield frames.frame(frames.CONTINUATION, 0, 1, b"")


def _full_continuations(target: Target) -> Iterator[bytes]:
    yield frames.frame(frames.HEADERS, 0, 1, hpack.encode(_head(target.stream)))
    field_of_16_kib = hpack.encode([(b"x", bytes(16_000).replace(b"\0", b"y"))])
    for _ in range(1_000):
        yield frames.frame(frames.CONTINUATION, 0, 1, field_of_16_kib)


def _hpack_bomb(target: Target) -> Iterator[bytes]:
    """One field of 4,000 bytes goes into the table; every byte that follows names it once more: 1 to 4,000."""
    value = b"z" * 4_000
    bomb = b"\x40\x01x\x7f" + bytes(((4_000 - 127) & 0x7F | 0x80, (4_000 - 127) >> 7)) + value
    head = hpack.encode(_head(target.stream))
    for number in range(20):
        block = head + (bomb if not number else b"") + b"\xbe" * (16_000 - len(head) - len(bomb))
        yield frames.headers(2 * number + 1, block, frames.END_STREAM, frames.FRAME_BYTES_MAX)


def _list_too_large(target: Target) -> Iterator[bytes]:
    fields = [(b"x%04d" % number, b"") for number in range(1_000)]
    for number in range(50):
        yield target.headers(number, target.stream, *fields, end=True)


def _nameless_headers(target: Target) -> Iterator[bytes]:
    for number in range(FRAMES):
        yield target.headers(number, target.stream, (b"", b""), end=True)


def _pings(target: Target) -> Iterator[bytes]:
    for _ in range(FRAMES):
        yield frames.ping(bytes(8), ack=False)


def _settings(target: Target) -> Iterator[bytes]:
    for _ in range(FRAMES):
        yield frames.settings({})


def _settings_full_of_windows(target: Target) -> Iterator[bytes]:
    """Each value of the initial window is work for every stream: as many of both as there can be."""
    for number in range(900):
        yield target.headers(number, target.stream)
    windows = b"".join(b"\0\x04" + (value % 2 + 65_535).to_bytes(4, "big") for value in range(2_730))
    for _ in range(1_000):
        yield frames.frame(frames.SETTINGS, 0, 0, windows)


def _goaways(target: Target) -> Iterator[bytes]:
    for _ in range(FRAMES):
        yield frames.goaway(0, ErrorCode.NO_ERROR, "x" * 200)


def _priorities(target: Target) -> Iterator[bytes]:
    for number in range(FRAMES):
        yield frames.frame(
            frames.PRIORITY, 0, 2 * (number % 1_000) + 1, (number % 997 * 2).to_bytes(4, "big") + b"\x10"
        )


def _unknown(target: Target) -> Iterator[bytes]:
    for _ in range(FRAMES):
        yield frames.frame(0xFA, 0, 0, b"")


def _empty_data(target: Target) -> Iterator[bytes]:
    yield target.headers(0, target.stream)
    for _ in range(FRAMES):
        yield frames.frame(frames.DATA, 0, 1, b"")


def _padding_only(target: Target) -> Iterator[bytes]:
    yield target.headers(0, target.stream)
    for _ in range(FRAMES):
        yield frames.frame(frames.DATA, frames.PADDED, 1, b"\x05" + bytes(5))


def _answers_without_window(target: Target) -> Iterator[bytes]:
    for number in range(1_000):
        yield target.ask(number)


def _tiny_windows(target: Target) -> Iterator[bytes]:
    yield target.ask(0)
    for _ in range(201_000):
        yield frames.window_update(1, 1)


def _unfinished_messages(target: Target) -> Iterator[bytes]:
    """Each call says that its message has 8 MB, and sends 250 KB of it."""
    begun = b"\0" + (8_000_000).to_bytes(4, "big") + bytes(16_379)
    for number in range(900):
        yield target.headers(number, target.unary)
        yield frames.frame(frames.DATA, 0, 2 * number + 1, begun)
        for _ in range(15):
            yield frames.frame(frames.DATA, 0, 2 * number + 1, bytes(16_384))


_CLOSED = {frames.SETTING_INITIAL_WINDOW_SIZE: 0}

ATTACKS = (
    Attack("rapid reset", "CVE-2023-44487", "resets_max", _rapid_reset),
    Attack("MadeYouReset", "CVE-2025-8671", "resets_max", _made_you_reset),
    Attack("CONTINUATION flood, empty frames", "CVE-2024-27316", "continuations_max", _empty_continuations),
    Attack("CONTINUATION flood, full frames", "CVE-2024-27316", "header_list_bytes_max", _full_continuations),
    Attack("HPACK bomb", "CVE-2016-6581", "header_list_bytes_max", _hpack_bomb, closes=False),
    Attack("header list too large", "", "header_list_bytes_max", _list_too_large, closes=False),
    Attack("headers without a name", "CVE-2019-9516", "resets_max", _nameless_headers),
    Attack("ping flood", "CVE-2019-9512", "pings_max", _pings),
    Attack("ping flood that reads no answer", "CVE-2019-9512", "pings_max", _pings, reads=False),
    Attack("settings flood", "CVE-2019-9515", "settings_max", _settings),
    Attack("settings full of windows", "", "settings_max", _settings_full_of_windows),
    Attack("GOAWAY flood", "", "settings_max", _goaways),
    Attack("priority flood", "CVE-2019-9513", "priorities_max", _priorities),
    Attack("flood of unknown frames", "", "priorities_max", _unknown),
    Attack("empty-frames flood", "CVE-2019-9518", "empty_frames_max", _empty_data),
    Attack("flood of frames of padding", "CVE-2019-9518", "empty_frames_max", _padding_only),
    Attack(
        "zero window",
        "CVE-2019-9517",
        "send_buffer_bytes_max",
        _answers_without_window,
        settings=_CLOSED,
        in_use_mib=26,
    ),
    Attack(
        "slow read: takes nothing from its socket",
        "CVE-2019-9517",
        "send_buffer_bytes_max",
        _answers_without_window,
        reads=False,
        in_use_mib=26,
    ),
    Attack("tiny window updates", "CVE-2019-9511", "window_updates_max", _tiny_windows, settings=_CLOSED),
    Attack("unfinished messages", "", "receive_buffer_bytes_max", _unfinished_messages, closes=False, in_use_mib=80),
)
