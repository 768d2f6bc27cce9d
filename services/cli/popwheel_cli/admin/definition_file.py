"""File of definitions: topics and groups with all their settings, as YAML (or JSON, which is YAML)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from popwheel_cli.errors import CommandError
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS

BYTES_MAX: Final = 16 * 1024 * 1024
ENTRIES_MAX: Final = 120_000
"""Limit of entries: as many as a cluster has by its settings' defaults, and some more."""
VERSION: Final = 1

Kind = Literal["topic", "group"]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LISTS: Final[Mapping[str, Kind]] = {"topics": "topic", "groups": "group"}
_WIDTH: Final = 1_000_000
_DEPTH_MAX: Final = 16


class FileError(CommandError):
    """Error of a file that is no list of definitions; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Topic or group of a file.

    Args:
        kind: topic or group.
        settings: what the file says of it, as the admin API names it; its name among them.
        line: where it begins, from 1 on; 0 if that is not known.
    """

    kind: Kind
    settings: Mapping[str, Any]
    line: int = 0

    @property
    def name(self) -> str:
        """Name of the entry."""
        return str(self.settings["name"])


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_growth(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"initial_ms", "max_ms", "multiplier"}
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in value.values())
    )


_TEXT: Final = (_is_text, "a text; write it in quotes")
_WHOLE: Final = (_is_number, "a whole number")
_KEYS: Final[Mapping[Kind, Mapping[str, tuple[Callable[[object], bool], str]]]] = {
    "topic": {
        "name": _TEXT,
        "type": (_is_text, "a text such as NORMAL"),
        "queues": _WHOLE,
        **{each.name: _TEXT if each.words else _WHOLE for each in TOPIC_SETTINGS},
    },
    "group": {
        "name": _TEXT,
        "max_attempts": _WHOLE,
        "fifo": (lambda value: isinstance(value, bool), "true or false"),
        "backoff_ms": (_are_numbers, "a list of whole numbers"),
        "exponential_backoff": (_is_growth, "a map of initial_ms, max_ms and multiplier"),
    },
}


def written(topics: Iterable[Mapping[str, Any]], groups: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of a file with these definitions, always in the same order.

    Args:
        topics, groups: their settings, the name among them.
    """
    content = {
        "version": VERSION,
        "topics": [_ordered("topic", each) for each in sorted(topics, key=_name_of)],
        "groups": [_ordered("group", each) for each in sorted(groups, key=_name_of)],
    }
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=_WIDTH)
    return text


def _name_of(settings: Mapping[str, Any]) -> str:
    return str(settings["name"])


def _ordered(kind: Kind, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in _KEYS[kind] if key in settings}


def entries_of(data: bytes, source: str) -> list[Entry]:
    """Read a file; all of it is checked before anything is done.

    Args:
        data: its bytes.
        source: its name, for sentences.

    Raises:
        FileError: it is too large, no YAML, or says what it can't; the sentence names the line.
    """
    check_size(data, source)
    root = _composed(data, source)
    if not isinstance(root, yaml.MappingNode):
        raise FileError(f"{source} is no map of topics and groups; see `popwheel admin export`")
    found: list[Entry] = []
    for key, value in _items(root, source, ("version", *_LISTS)):
        if key == "version":
            if _value(value, source) != VERSION:
                raise FileError(f"{source}, line {_line(value)}: version must be {VERSION}; a newer release wrote this")
            continue
        if not isinstance(value, yaml.SequenceNode):
            raise FileError(f"{source}, line {_line(value)}: {key} must be a list")
        if len(found) + len(value.value) > ENTRIES_MAX:
            raise FileError(f"{source} holds more than {ENTRIES_MAX} topics and groups; make several files of it")
        found += [_entry(_LISTS[key], node, source) for node in value.value]
    return without_repeats(found, source)


def check_size(data: bytes, source: str) -> None:
    """Refuse a file that is too large.

    Raises:
        FileError: it is.
    """
    if len(data) > BYTES_MAX:
        raise FileError(f"{source} has more than {BYTES_MAX >> 20} MiB; make several files of it")


def without_repeats(entries: Iterable[Entry], source: str) -> list[Entry]:
    """Return the entries without repeated ones.

    Raises:
        FileError: two say different things of one name.
    """
    found: dict[tuple[str, str], Entry] = {}
    for each in entries:
        before = found.setdefault((each.kind, each.name), each)
        if before.settings != each.settings:
            where = f", lines {before.line} and {each.line}" if each.line else ""
            raise FileError(
                f"{source}{where}: the {each.kind} {each.name[:200]} is there twice, and not alike; leave one out"
            )
    return list(found.values())


def _composed(data: bytes, source: str) -> yaml.Node | None:
    try:
        text = data.decode("utf-8")
        _check_depth(text, source)
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise FileError(f"{source} is not in UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise FileError(f"{source} is no YAML: {error}") from error
    return node


def _check_depth(text: str, source: str) -> None:
    """Refuse what is nested deeply: the library goes down into it by calls, and the process would crash."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_MAX:
                line = event.start_mark.line + 1 if event.start_mark else 0
                raise FileError(f"{source}, line {line}: this is nested too deeply")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _entry(kind: Kind, node: yaml.Node, source: str) -> Entry:
    if not isinstance(node, yaml.MappingNode):
        raise FileError(f"{source}, line {_line(node)}: a {kind} must be a map, with its name")
    keys = _KEYS[kind]
    settings: dict[str, Any] = {}
    for key, value_node in _items(node, source, tuple(keys)):
        is_right, what = keys[key]
        value = _value(value_node, source)
        if not is_right(value):
            raise FileError(f"{source}, line {_line(value_node)}: {key} must be {what}, not {str(value)[:64]!r}")
        settings[key] = value
    if "name" not in settings:
        raise FileError(f"{source}, line {_line(node)}: a {kind} has no name")
    return Entry(kind, settings, _line(node))


def _items(node: yaml.MappingNode, source: str, known: Sequence[str]) -> list[tuple[str, yaml.Node]]:
    """Yield keys and values of a map, which may have only known keys, each once."""
    found: dict[str, yaml.Node] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)[:64]
        if not isinstance(key_node, yaml.ScalarNode) or key not in known:
            raise FileError(f"{source}, line {_line(key_node)}: there is no {key!r}; known are {', '.join(known)}")
        if key in found:
            raise FileError(f"{source}, line {_line(key_node)}: {key} is there twice")
        found[key] = value_node
    return list(found.items())


def _value(node: yaml.Node, source: str) -> object:
    """Return a node's value in types of Python."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise FileError(f"{source}, line {_line(node)}: {' '.join(str(error).split())[:200]}") from error
    finally:
        loader.dispose()


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1
