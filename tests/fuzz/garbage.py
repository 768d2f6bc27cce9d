"""Random requests: protobuf-aware (any field, any size, any nonsense), tweaked good ones, and mutated bytes."""

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, Message

from popwheel_common.contract.names import Kind
from tests.harness.names import BAD_TOPICS, OF_KIND

M = TypeVar("M", bound=Message)

_DEPTH_MAX = 4
_SIGNED_32 = (0, 1, -1, 7, 8, 31, 32, 33, 1024, 2**31 - 1, -(2**31))
_SIGNED_64 = (*_SIGNED_32, 2**53, 2**63 - 1, -(2**63), 253_402_300_800, -62_135_596_801)
_UNSIGNED = (0, 1, 2, 255, 65_536, 2**31, 2**32 - 1)
_NUMBERS: dict[int, Sequence[Any]] = {
    Field.CPPTYPE_INT32: _SIGNED_32,
    Field.CPPTYPE_INT64: _SIGNED_64,
    Field.CPPTYPE_UINT32: _UNSIGNED,
    Field.CPPTYPE_UINT64: (*_UNSIGNED, 2**64 - 1),
    Field.CPPTYPE_DOUBLE: (0.0, -1.0, 1e308, float("inf"), float("nan")),
    Field.CPPTYPE_FLOAT: (0.0, -1.0, 1e38, float("inf"), float("nan")),
    Field.CPPTYPE_BOOL: (False, True),
}
BAD_TEXTS = (
    *(
        "",
        " ",
        "*",
        "a || b",
        "a |",
        "||",
        "%",
        "%%",
        "../x",
        "/etc/passwd",
        "..",
        "a/b",
        "a\\b",
        "a b",
        "a\nb",
        "a\0b",
    ),
    *(
        "\x7f",
        "ü",
        "\u202e",
        "😀",
        "a+b",
        "%RETRY%",
        "%DLQ%",
        "%RETRY%g+t",
        "%DLQ%group",
        "rmq_sys_REVIVE_LOG_popwheel",
    ),
    *(
        "%RETRY%fuzz-g+fuzz-a",
        "%RETRY%fuzz-g+" + "n" * 230,
        "%RETRY%fuzz-g+/../../x",
        "%RETRY%fuzz-g+a/b",
        "%RETRY%fuzz-g+%RETRY%fuzz-g+fuzz-a",
        "%DLQ%fuzz-g",
        "%DLQ%%DLQ%fuzz-g",
        "%SYS%x",
        "rmq_sys_wheel_timer",
    ),
    *(text for text in BAD_TOPICS if "\ud800" not in text and len(text) < 10_000),
    *(name for of_kind in OF_KIND.values() for name in of_kind if name not in OF_KIND[Kind.USER]),
    *("n" * 120, "n" * 127, "n" * 128, "n" * 255, "n" * 256, "n" * 9_000, "0" * 512, "1 2 3 4 5 6 7 8 9", "9" * 30),
)


class Garbage:
    """Makes requests.

    Args:
        dice: decides.
        texts: names and receipt handles that mean something at this moment.
    """

    def __init__(self, dice: random.Random, texts: Callable[[], Sequence[str]]) -> None:
        self._dice = dice
        self._texts = texts

    def text(self) -> str:
        """A name or handle: good, bad, or a good one with a flaw."""
        dice = self._dice
        known = self._texts()
        roll = dice.random()
        if known and roll < 0.5:
            return dice.choice(known)
        if known and roll < 0.65:
            return self.flawed(dice.choice(known))
        if roll < 0.95:
            return dice.choice(BAD_TEXTS)
        return "".join(
            chr(dice.choice((dice.randrange(128), dice.randrange(0xD800)))) for _ in range(dice.randrange(40))
        )

    def flawed(self, text: str) -> str:
        """A text with one thing wrong with it: cut, longer, one character changed, two words swapped."""
        dice = self._dice
        at = dice.randrange(len(text) + 1)
        match dice.randrange(4):
            case 0:
                return text[:at]
            case 1:
                return text[:at] + dice.choice("0a %\0") + text[at:]
            case 2:
                return text[:at] + dice.choice("0123456789abcdef -") + text[at + 1 :]
            case _:
                words = text.split(" ")
                dice.shuffle(words)
                return " ".join(words)

    def data(self) -> bytes:
        """Bytes of a field."""
        size = self._dice.choice((0, 1, 5, 100, 100, 5_000, 70_000))
        return self._dice.randbytes(size)

    def fill(self, message: M, depth: int = 0, share: float = 0.6) -> M:
        """Set fields of a message at random, and those of what is inside it."""
        for field in message.DESCRIPTOR.fields:
            if self._dice.random() < share:
                self._set(message, field, depth)
        return message

    def tweaked(self, good: M) -> M:
        """A good message with one to three fields, at any depth, changed or taken away."""
        message = type(good)()
        message.CopyFrom(good)
        for _ in range(self._dice.choice((1, 1, 1, 2, 3))):
            self._tweak(message)
        return message

    def mutated(self, data: bytes) -> bytes:
        """Bytes with some of them changed, taken away, doubled or made up."""
        dice = self._dice
        mutable = bytearray(data)
        for _ in range(dice.choice((1, 1, 2, 4, 16))):
            at = dice.randrange(len(mutable) + 1)
            match dice.randrange(6):
                case 0 if at < len(mutable):
                    mutable[at] = dice.randrange(256)
                case 1 if at < len(mutable):
                    mutable[at] ^= 1 << dice.randrange(8)
                case 2:
                    del mutable[at : at + dice.choice((1, 2, 9, 100))]
                case 3:
                    mutable[at:at] = dice.randbytes(dice.choice((1, 2, 9, 40)))
                case 4:
                    mutable[at:at] = mutable[at : at + dice.choice((1, 9, 40))]
                case _:
                    mutable[at : at + 1] = dice.choice(
                        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80", b"\xff" * 11)
                    )
        return bytes(mutable)

    def request(self, request_type: type[M], good: Callable[[], M]) -> bytes:
        """The bytes of a request, more or less of this type."""
        roll = self._dice.random()
        if roll < 0.10:
            return good().SerializeToString()
        if roll < 0.55:
            return self.tweaked(good()).SerializeToString()
        if roll < 0.80:
            return self.fill(request_type()).SerializeToString()
        if roll < 0.95:
            return self.mutated(good().SerializeToString())
        return self._dice.randbytes(self._dice.randrange(200))

    def _tweak(self, message: Message) -> None:
        dice = self._dice
        while True:
            field: Any = dice.choice(message.DESCRIPTOR.fields)
            inside = self._inside(message, field)
            if not inside or dice.random() < 0.25:
                break
            message = dice.choice(inside)
            if not message.DESCRIPTOR.fields:
                return
        if dice.random() < 0.3:
            message.ClearField(field.name)
        else:
            self._set(message, field, depth=2)

    def _inside(self, message: Message, field: Any) -> list[Message]:
        """The messages that a field holds."""
        if field.cpp_type != Field.CPPTYPE_MESSAGE or _is_map(field):
            return []
        value = getattr(message, field.name)
        if field.is_repeated:
            return list(value)
        return [value] if message.HasField(field.name) else []

    def _set(self, message: Message, field: Any, depth: int) -> None:
        dice = self._dice
        if _is_map(field):
            entries = getattr(message, field.name)
            for _ in range(dice.choice((1, 1, 2, 129))):
                entries[f"{self.text()}{dice.choice(('', dice.randrange(1000)))}"] = self.text()
        elif field.cpp_type == Field.CPPTYPE_MESSAGE:
            if depth >= _DEPTH_MAX:
                return
            value = getattr(message, field.name)
            if field.is_repeated:
                for _ in range(dice.choice((0, 1, 1, 2, 3))):
                    self.fill(value.add(), depth + 1)
            else:
                value.SetInParent()
                self.fill(value, depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).extend(self._value(field) for _ in range(dice.choice((0, 1, 2, 300))))
        else:
            setattr(message, field.name, self._value(field))

    def _value(self, field: Any) -> Any:
        dice = self._dice
        if field.cpp_type == Field.CPPTYPE_ENUM:
            assert field.enum_type is not None
            known = [value.number for value in field.enum_type.values]
            return dice.choice([*known, *known, 77, -1, 2**31 - 1])
        if field.cpp_type == Field.CPPTYPE_STRING:
            return self.data() if field.type == Field.TYPE_BYTES else self.text()
        return dice.choice(_NUMBERS[field.cpp_type])


def _is_map(field: Any) -> bool:
    inside = field.message_type
    return inside is not None and bool(inside.GetOptions().map_entry)


def readable(request_type: type[Message], data: bytes) -> str:
    """A request for a person, as far as it can be read."""
    try:
        return str(request_type.FromString(data))[:4_000]
    except (DecodeError, ValueError) as error:
        return f"no {request_type.DESCRIPTOR.name}: {error}"
