"""The controller's state on disk: one small JSON file, replaced whole at every change.

The file holds a magic word, a format version, the state, and a CRC-32C over the state's canonical JSON, so that it can
be read by a person and yet no damaged bit passes. A new file is written beside the old one, synced, renamed over
it, and the folder synced: after a crash at any step the old state is there or the new one, never half of one.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from services.common.disk import Disk, replace_file
from services.common.errors import CorruptDataError, UnknownFormatError
from services.common.pb.popwheel.v1.controller_pb2 import Group, Topic, TopicType
from services.controller.cluster_state import ClusterState

FILE_NAME = "cluster.json"
MAGIC = "popwheel-controller-state"
FORMAT_VERSION = 1


class StateStore:
    """Loads and saves the state of one cluster.

    Args:
        folder: where the file lies; must exist when it is saved.
        disk: what does the reading and writing. The file holds the key of the receipt handles, so that of a real
            process makes files that only their owner can read (`PrivateDisk`).
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.path = folder / FILE_NAME
        self._disk = disk

    def load(self) -> ClusterState | None:
        """The state as last saved, without brokers; None if none was ever saved.

        Raises:
            CorruptDataError: the file is damaged.
            UnknownFormatError: the file is of another kind, or of a version this release does not know.
            OSError: it cannot be read.
        """
        if not self._disk.exists(self.path):
            return None
        file = self._disk.open(self.path)
        try:
            content = file.read(0, file.size())
        finally:
            file.close()
        return decode(content, str(self.path))

    async def save(self, state: ClusterState) -> None:
        """Keep a state; returns when it would outlast a power loss.

        Raises:
            OSError: it is not known to be kept. The next save starts afresh with a new file.
        """
        await replace_file(self._disk, self.path, encode(state))


def encode(state: ClusterState) -> bytes:
    """The file's content for a state; brokers are left out."""
    stored = {
        "name": state.name,
        "receipt_key": base64.b64encode(state.receipt_key).decode(),
        "version": state.version,
        "topics": [
            {"name": topic.name, "type": TopicType.Name(topic.type), "queues": topic.queues, "id": topic.id}
            for topic in state.topics.values()
        ],
        "groups": [
            {
                "name": group.name,
                "max_attempts": group.max_attempts,
                "fifo": group.fifo,
                "backoff_ms": list(group.backoff_ms),
                "id": group.id,
            }
            for group in state.groups.values()
        ],
    }
    canonical = _canonical(stored)
    head = f'{{"magic": "{MAGIC}", "format": {FORMAT_VERSION}, "crc32c": "{_checksum(canonical)}",\n"state": '
    return head.encode() + canonical + b"}\n"


def decode(content: bytes, source: str) -> ClusterState:
    """Read a file's content back.

    Args:
        content: what `encode` made.
        source: the file's name, for the error's sentence.

    Raises:
        CorruptDataError: it is damaged.
        UnknownFormatError: it is of another kind, or of a version this release does not know.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise CorruptDataError(f"{source} is damaged: it is not JSON ({error}); restore it from a backup") from error
    if not isinstance(document, dict) or document.get("magic") != MAGIC:
        raise UnknownFormatError(
            f"{source} is not a controller's state file (no magic word {MAGIC}); it is left as it is"
        )
    if document.get("format") != FORMAT_VERSION:
        raise UnknownFormatError(
            f"{source} is of format {document.get('format')!r}, this release knows {FORMAT_VERSION}; "
            "run the release that wrote it, or a newer one"
        )
    stored = document.get("state")
    if not isinstance(stored, dict) or document.get("crc32c") != _checksum(_canonical(stored)):
        raise CorruptDataError(f"{source} is damaged: its checksum does not match; restore it from a backup")
    try:
        return _state(stored)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CorruptDataError(f"{source} is damaged: {error!r}; restore it from a backup") from error


def _state(stored: Mapping[str, Any]) -> ClusterState:
    topics = [
        Topic(name=topic["name"], type=TopicType.Value(topic["type"]), queues=topic["queues"], id=topic["id"])
        for topic in stored["topics"]
    ]
    groups = [
        Group(
            name=group["name"],
            max_attempts=group["max_attempts"],
            fifo=group["fifo"],
            backoff_ms=group["backoff_ms"],
            id=group["id"],
        )
        for group in stored["groups"]
    ]
    return ClusterState(
        name=stored["name"],
        receipt_key=base64.b64decode(stored["receipt_key"], validate=True),
        version=stored["version"],
        topics={topic.name: topic for topic in topics},
        groups={group.name: group for group in groups},
    )


def _canonical(stored: Mapping[str, Any]) -> bytes:
    return json.dumps(stored, sort_keys=True, separators=(",", ":")).encode()


def _checksum(canonical: bytes) -> str:
    return f"{google_crc32c.value(canonical):08x}"
