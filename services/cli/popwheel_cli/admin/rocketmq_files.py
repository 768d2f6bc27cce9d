"""Topics and groups of RocketMQ brokers, from their `topics.json` and `subscriptionGroup.json` (pure).

What a broker made for itself is left out and counted. What has no counterpart here is left out and named, with the
reason. All other fields of an entry, such as flags of units, say nothing that there is here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from popwheel_cli.admin.definition_file import ENTRIES_MAX, Entry, FileError, Kind, check_size
from popwheel_common.contract import names
from popwheel_common.contract.names import Use
from popwheel_common.errors import StatusError

_TABLES: Final[Mapping[str, Kind]] = {"topicConfigTable": "topic", "subscriptionGroupTable": "group"}
_TYPES: Final = frozenset(("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY"))
_NO_TYPES: Final = frozenset(("", "UNSPECIFIED"))
_PREFIXES: Final = ("%RETRY%", "%DLQ%", "%REPLY%", "%SYS%", "%LMQ%", "rmq_sys_", "RMQ_SYS_")
_TOPICS: Final = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "SCHEDULE_TOPIC_XXXX_V2",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
_GROUP_PREFIXES: Final = ("CID_RMQ_SYS_", "CID_ONSAPI_", "%SYS%")
_GROUPS: Final = frozenset(
    (
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_SYS_RMQ_TRANS",
        "CID_DefaultHeartBeatSyncerTopic",
    )
)
_INHERIT, _WRITE, _READ = 1, 2, 4
_RETRIES: Final = 16
_QUEUES: Final = 16
_SKIPPED_WAITS: Final = 2
"""A list of waits is read from its third one on there."""
_MINUTE_MS: Final = 60_000


@dataclass(slots=True)
class Found:
    """Content of a file of RocketMQ.

    Args:
        entries: what can be made here.
        unmapped: what can't: kind, name and reason.
        of_system: how many are the broker's own.
    """

    entries: list[Entry] = field(default_factory=list)
    unmapped: list[tuple[Kind, str, str]] = field(default_factory=list)
    of_system: int = 0


class _UnmappedError(Exception):
    """Error: a setting has no counterpart here; the sentence says why."""


def rocketmq_found(data: bytes, source: str) -> Found | None:
    """Return the content of a file of RocketMQ; None if it is none.

    Args:
        data: its bytes.
        source: its name, for sentences.

    Raises:
        FileError: it is one, but too large or not as such files are.
    """
    check_size(data, source)
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError):
        return None
    tables = _TABLES.keys() & whole.keys() if isinstance(whole, dict) else set()
    if not tables:
        return None
    found = Found()
    for table in sorted(tables):
        entries = whole[table]
        if not isinstance(entries, dict) or not all(isinstance(each, dict) for each in entries.values()):
            raise FileError(f"{source}: {table} is no map of topics or groups by name")
        if len(entries) > ENTRIES_MAX:
            raise FileError(f"{source}: {table} holds more than {ENTRIES_MAX} entries; make several files of it")
        for name, each in sorted(entries.items()):
            _take(_TABLES[table], name, each, found)
    return found


def _take(kind: Kind, name: str, said: Mapping[str, Any], found: Found) -> None:
    if _is_of_system(kind, name, said):
        found.of_system += 1
        return
    try:
        settings = _topic(name, said) if kind == "topic" else _group(name, said)
    except _UnmappedError as error:
        found.unmapped.append((kind, name, str(error)))
    except StatusError as error:
        found.unmapped.append((kind, name, error.message))
    else:
        found.entries.append(Entry(kind, {"name": name, **settings}))


def _is_of_system(kind: Kind, name: str, said: Mapping[str, Any]) -> bool:
    if kind == "group":
        return name in _GROUPS or name.startswith(_GROUP_PREFIXES)
    # The topics of a cluster's and a broker's name are inherited from, and so is the one by which topics are made.
    perm = said.get("perm", 0)
    inherits = isinstance(perm, int) and bool(perm & _INHERIT)
    return name in _TOPICS or name.startswith(_PREFIXES) or name.endswith("_REPLY_TOPIC") or inherits


def _topic(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    names.topic(name, Use.CREATE)
    perm = _number(said, "perm", _READ | _WRITE)
    if perm & (_READ | _WRITE) != _READ | _WRITE:
        raise _UnmappedError(f"perm {perm}: a topic that takes or gives nothing; here rules of access say that")
    attributes = {
        str(key).removeprefix("+"): str(value) for key, value in (said.get("attributes") or {}).items() if value
    }
    kind = attributes.get("message.type", "").upper()
    if kind not in _TYPES | _NO_TYPES:
        raise _UnmappedError(f"message.type {kind[:64]}: there is no such type here")
    if attributes.get("cleanup.policy", "DELETE").upper() != "DELETE":
        raise _UnmappedError(f"cleanup.policy {attributes['cleanup.policy'][:64]}: there are no such topics here")
    settings: dict[str, Any] = {"type": "NORMAL" if kind in _NO_TYPES else kind}
    if kind == "LITE":
        minutes = attributes.get("lite.topic.expiration", "0")
        if minutes.lstrip("-").isdigit() and int(minutes) > 0:
            settings["lite_expiration_ms"] = int(minutes) * _MINUTE_MS
    elif kind != "PRIORITY":
        # While queues are taken away or added there, one of the two runs ahead.
        settings["queues"] = max(_number(said, "readQueueNums", _QUEUES), _number(said, "writeQueueNums", _QUEUES))
    else:
        settings["queues"] = _number(said, "writeQueueNums", _QUEUES)
    return settings


def _group(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    names.group(name)
    if said.get("consumeEnable", True) is not True:
        raise _UnmappedError("consumeEnable false: a group that may not consume; here rules of access say that")
    retries = _number(said, "retryMaxTimes", _RETRIES)
    if retries < 0:
        raise _UnmappedError(f"retryMaxTimes {retries}: a number of attempts that has no end; here it has one")
    settings: dict[str, Any] = {"max_attempts": retries + 1, "fifo": said.get("consumeMessageOrderly", False) is True}
    policy = said.get("groupRetryPolicy") or {}
    grows, listed = policy.get("exponentialRetryPolicy"), policy.get("customizedRetryPolicy")
    if policy.get("type") == "EXPONENTIAL" and grows is not None:
        settings["exponential_backoff"] = {
            "initial_ms": _number(grows, "initial", 5_000),
            "max_ms": _number(grows, "max", 7_200_000),
            "multiplier": _number(grows, "multiplier", 2),
        }
    elif policy.get("type", "CUSTOMIZED") == "CUSTOMIZED" and listed is not None and listed.get("next"):
        waits = listed["next"]
        if not isinstance(waits, list) or not all(isinstance(each, int) for each in waits):
            raise _UnmappedError("customizedRetryPolicy: its waits are no numbers")
        settings["backoff_ms"] = waits[_SKIPPED_WAITS:] or waits[-1:]
    return settings


def _number(said: Mapping[str, Any], key: str, default: int) -> int:
    value = said.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _UnmappedError(f"{key} is {str(value)[:64]!r}, no whole number")
    return value
