"""Fields of an options model: each setting's full name, kind, default, limits and meaning.

The loader (`popwheel_common.settings.config`) checks values by it; `docs/reference/options.md` is made from it.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
}
_PLURALS: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts", Path: "paths"}


@dataclass(frozen=True, slots=True)
class OptionField:
    """A setting.

    Args:
        key: full name, `broker.flush`.
        possible: its kind and limits in words, `a whole number from 1 to 1024`.
        default: its default as YAML would have it; empty if there is none.
        description: what it is for.
    """

    key: str
    possible: str
    default: str
    description: str


def sub_model(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that groups further settings; None if the field is itself a setting."""
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def option_fields(model: type[BaseModel], prefix: str = "") -> Iterator[OptionField]:
    """Return all settings of a model and of the models within it, in the order they are written."""
    for name, info in model.model_fields.items():
        nested = sub_model(info)
        if nested is not None:
            yield from option_fields(nested, f"{prefix}{name}.")
        else:
            yield OptionField(f"{prefix}{name}", possible_values(info), _default(info), info.description or "")


def find_field(model: type[BaseModel], path: Sequence[str]) -> FieldInfo | None:
    """Return the field at a path of names; None if there is none."""
    info: FieldInfo | None = None
    for name in path:
        info = model.model_fields.get(name)
        if info is None:
            return None
        model = sub_model(info) or BaseModel
    return info


def possible_values(info: FieldInfo) -> str:
    """Return the values that a setting may have, in words: `sync or async`, `a whole number from 1 to 1024`."""
    return _kind(info.annotation) + _limits(info.metadata, "characters" if info.annotation is str else "entries")


def plain_value(value: object) -> str:
    """Return a value as a person would write it in the file: `true`, `8081`, `[1000, 5000]`, nothing for none."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return plain_value(value.value)
    if isinstance(value, str | Path):
        return str(value) or '""'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{plain_value(key)}: {plain_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(plain_value, value)) + "]"
    return str(value)


def _default(info: FieldInfo) -> str:
    return "" if info.is_required() else plain_value(info.get_default(call_default_factory=True, validated_data={}))


def _kind(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return _alternatives([plain_value(value) for value in arguments])
    if origin in (Union, types.UnionType):
        return _alternatives(["null" if kind is type(None) else _kind(kind) for kind in arguments])
    if origin in (list, tuple, Sequence):
        item = next((kind for kind in arguments if kind is not Ellipsis), str)
        base, *rules = get_args(item) if get_origin(item) is Annotated else [item]
        limits = _limits([part for rule in rules for part in getattr(rule, "metadata", [rule])], "characters")
        return f"a list of {_PLURALS.get(base, 'values')}{limits}"
    if origin in (dict, Mapping):
        return "names with values"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _alternatives([plain_value(value) for value in annotation])
    return getattr(annotation, "__name__", str(annotation))


def _alternatives(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _limits(rules: Sequence[Any], unit: str) -> str:
    limits: dict[str, Any] = {}
    for rule in rules:
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern"):
            limit = getattr(rule, name, None)
            if limit is not None:
                limits[name] = limit
    words = []
    if "ge" in limits and "le" in limits:
        words.append(f"from {limits['ge']} to {limits['le']}")
    else:
        words += [
            f"{phrase} {limits[name]}" for name, phrase in (("ge", "at least"), ("le", "at most")) if name in limits
        ]
    words += [
        f"{phrase} {limits[name]}" for name, phrase in (("gt", "more than"), ("lt", "less than")) if name in limits
    ]
    if "min_length" in limits and "max_length" in limits:
        words.append(f"of {limits['min_length']} to {limits['max_length']} {unit}")
    elif "min_length" in limits:
        words.append(f"of at least {limits['min_length']} {unit}")
    elif "max_length" in limits:
        words.append(f"of at most {limits['max_length']} {unit}")
    if "pattern" in limits:
        words.append(f"of the form {limits['pattern']}")
    return f" {', '.join(words)}" if words else ""
