"""Descriptors as flat facts, one line each, that compare well."""

from collections.abc import Iterable, Iterator

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)


def describe(files: Iterable[FileDescriptor]) -> dict[str, str]:
    """Full name of every message, field, enum, value and method -> what it is.

    A field: its number, label, type, place in a oneof, whether it tells absent from empty. A value: its number. A
    method: request and answer, and which of them are streams. Options and comments do not count.
    """
    facts: dict[str, str] = {}
    for file in files:
        proto = FileDescriptorProto()
        file.CopyToProto(proto)
        facts.update(_file(proto))
    return facts


def _file(proto: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for message in proto.message_type:
        yield from _message(proto.package, message)
    for enum in proto.enum_type:
        yield from _enum(proto.package, enum)
    for service in proto.service:
        name = f"{proto.package}.{service.name}"
        yield name, "service"
        for method in service.method:
            request = f"{'stream ' * method.client_streaming}{method.input_type}"
            answer = f"{'stream ' * method.server_streaming}{method.output_type}"
            yield f"{name}.{method.name}", f"rpc ({request}) returns ({answer})"


def _message(scope: str, message: DescriptorProto) -> Iterator[tuple[str, str]]:
    name = f"{scope}.{message.name}"
    yield name, "map entry" if message.options.map_entry else "message"
    for field in message.field:
        yield f"{name}.{field.name}", _field(message, field)
    for nested in message.nested_type:
        yield from _message(name, nested)
    for enum in message.enum_type:
        yield from _enum(name, enum)


def _field(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    kind = field.type_name or FieldDescriptorProto.Type.Name(field.type)
    label = FieldDescriptorProto.Label.Name(field.label)
    if field.proto3_optional:
        place = " optional"
    elif field.HasField("oneof_index"):
        place = f" in oneof {message.oneof_decl[field.oneof_index].name}"
    else:
        place = ""
    return f"{field.number}: {label} {kind}{place}"


def _enum(scope: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, str]]:
    name = f"{scope}.{enum.name}"
    yield name, "enum"
    for value in enum.value:
        yield f"{name}.{value.name}", f"= {value.number}"
