"""Valid sequences of frames, and what becomes of them when somebody breaks them."""

import random
from collections.abc import Sequence

from hpack import Encoder

from popwheel_proxy.protocol.client_methods import SERVICE
from popwheel_rpc.http2 import frames, hpack
from popwheel_rpc.http2.frames import ErrorCode
from tests.fuzz.garbage import Garbage

_PATHS = tuple(
    f"/{SERVICE}/{name}" for name in ("QueryRoute", "SendMessage", "ReceiveMessage", "Telemetry", "Heartbeat")
)
_ODD_FIELDS = (
    *((b"x-mq-client-id", b"fuzz"), (b"grpc-timeout", b"10m"), (b"grpc-timeout", b"x"), (b"content-length", b"5")),
    *((b"content-length", b"-1"), (b"te", b"gzip"), (b"connection", b"close"), (b":path", b"/again"), (b"", b"")),
    *((b"X-Upper", b"a"), (b"a\0b", b"c"), (b"a", b"b\r\nc"), (b"cookie", b"c" * 3_000), (b":status", b"200")),
    *((b"content-type", b"text/html"), (b"grpc-encoding", b"gzip"), (b"x" * 5_000, b"y" * 5_000)),
)


class Sequences:
    """Makes what one client sends over the life of a connection.

    Args:
        dice: decides.
    """

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._garbage = Garbage(dice, tuple)
        self._encoder = Encoder()
        self._stream = 1

    def make(self) -> bytes:
        """All bytes of one connection, mutated more or less."""
        dice = self._dice
        self._encoder = Encoder()
        self._stream = dice.choice((1, 1, 1, 3, 2**31 - 5))
        parts = [frames.settings({3: 100, 4: dice.choice((65_535, 0, 1, 2**31 - 1))})]
        for _ in range(dice.randrange(1, 40)):
            parts.append(self._step())
        self._shake(parts)
        start = b"" if dice.random() < 0.02 else frames.PREFACE
        data = start + b"".join(parts)
        return self._garbage.mutated(data) if dice.random() < 0.4 else data

    def cut(self, data: bytes) -> Sequence[bytes]:
        """The same bytes in pieces."""
        dice = self._dice
        longest = dice.choice((1, 9, 100, 5_000, 70_000))
        pieces = []
        at = 0
        while at < len(data):
            size = dice.randint(1, longest) if len(data) < 20_000 else longest + 500
            pieces.append(data[at : at + size])
            at += size
        return pieces

    def _shake(self, parts: list[bytes]) -> None:
        """Swap, double and drop whole frames."""
        dice = self._dice
        for _ in range(dice.choice((0, 0, 1, 3))):
            at, other = dice.randrange(len(parts)), dice.randrange(len(parts))
            match dice.randrange(4):
                case 0:
                    parts[at], parts[other] = parts[other], parts[at]
                case 1:
                    parts.insert(at, parts[other])
                case 2 if len(parts) > 1:
                    del parts[at]
                case _:
                    parts[at] = self._broken(parts[at])

    def _broken(self, part: bytes) -> bytes:
        """A frame with another kind, other flags, another stream or a length that is not so."""
        dice = self._dice
        header = bytearray(part[:9].ljust(9, b"\0"))
        field = dice.choice((0, 1, 2, 3, 4, 5, 8))
        header[field] = dice.choice((0, 1, 2, 4, 8, 9, 255, dice.randrange(256)))
        return bytes(header) + part[9:]

    def _any_stream(self) -> int:
        return self._dice.choice((0, 1, 3, max(1, self._stream - 2), self._stream, self._stream + 2, 2))

    def _step(self) -> bytes:
        dice = self._dice
        match dice.randrange(14):
            case 0 | 1 | 2 | 3:
                return self._request()
            case 4 | 5:
                return self._data(self._any_stream())
            case 6:
                return frames.window_update(self._any_stream(), dice.choice((0, 1, 100, 65_535, 2**31 - 1)))
            case 7:
                return frames.ping(dice.randbytes(8), ack=dice.random() < 0.3)
            case 8:
                key = dice.choice((1, 2, 3, 4, 5, 6, 99))
                return frames.settings({key: dice.choice((0, 1, 2, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**32 - 1))})
            case 9:
                return frames.rst_stream(self._any_stream(), dice.choice(list(ErrorCode)))
            case 10:
                dependency = dice.choice((0, 1, 3, 2**31 - 1)).to_bytes(4, "big") + bytes((dice.randrange(256),))
                return frames.frame(frames.PRIORITY, 0, self._any_stream(), dependency)
            case 11:
                return frames.goaway(dice.choice((0, 1, 2**31 - 1)), dice.choice(list(ErrorCode)), "bye")
            case 12:
                block = dice.randbytes(dice.randrange(60))
                return frames.frame(frames.HEADERS, dice.choice((4, 5, 0)), self._any_stream(), block)
            case _:
                kind, flags = dice.choice((5, 9, 11, 200)), dice.randrange(256)
                return frames.frame(kind, flags, self._any_stream(), dice.randbytes(dice.randrange(30)))

    def _request(self) -> bytes:
        dice = self._dice
        fields: list[hpack.Field] = [
            *((b":method", dice.choice((b"POST", b"POST", b"POST", b"GET"))), (b":scheme", b"http")),
            *((b":path", dice.choice(_PATHS).encode()), (b":authority", b"fuzz"), (b"te", b"trailers")),
            *((b"content-type", b"application/grpc"), (b"x-mq-client-id", b"fuzz")),
        ]
        if dice.random() < 0.3:
            fields.insert(dice.randrange(len(fields) + 1), dice.choice(_ODD_FIELDS))
        if dice.random() < 0.1:
            del fields[dice.randrange(len(fields))]
        block = (
            self._encoder.encode(fields, huffman=dice.random() < 0.5) if dice.random() < 0.7 else hpack.encode(fields)
        )
        stream_id = self._stream
        self._stream += 2
        end = frames.END_STREAM if dice.random() < 0.1 else 0
        pieces = frames.headers(stream_id & frames.STREAM_ID_MAX, block, end, dice.choice((16_384, 16_384, 40, 200)))
        rest = self._data(stream_id) if not end and dice.random() < 0.8 else b""
        return pieces + rest

    def _data(self, stream_id: int) -> bytes:
        dice = self._dice
        body = dice.choice((b"", b"", b"\x0a\x05\x12\x03abc", dice.randbytes(dice.randrange(300)), bytes(16_000)))
        length = len(body) if dice.random() < 0.8 else dice.choice((0, 1, 2**32 - 1, 2**23))
        payload = bytes((dice.choice((0, 0, 0, 0, 1)),)) + length.to_bytes(4, "big") + body
        if dice.random() < 0.1:
            payload = payload[: dice.randrange(len(payload))]
        flags = dice.choice((1, 1, 1, 0))
        if dice.random() < 0.1:
            payload = bytes((3,)) + payload + bytes(3)
            flags |= frames.PADDED
        return frames.frame(frames.DATA, flags, stream_id & frames.STREAM_ID_MAX, payload[:16_384])
