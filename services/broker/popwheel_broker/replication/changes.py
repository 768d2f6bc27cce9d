"""Changed keys of a map in order, so that a reader with an older version gets only the difference.

Keys are in chunks by the time of their last change; readers get whole chunks. No step goes through all keys.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Set
from typing import Generic, TypeVar

Key = TypeVar("Key")

_TIDIED_AT_ONCE = 4
_RECENT = 64
"""Number of latest chunks kept separately: frequent readers get no more than has changed meanwhile."""


class _Chunk(Generic[Key]):
    """Keys that have last changed about the same time.

    Args:
        version: none of them has changed after it.
    """

    __slots__ = ("keys", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.keys: set[Key] = set()


class Changes(Generic[Key]):
    """Remembers the order of each key's last change.

    Args:
        chunk_max: limit of keys in a chunk.
        gone_max: how many removed keys are remembered. A reader with a version from before that gets everything.
    """

    def __init__(self, chunk_max: int, gone_max: int) -> None:
        self._chunk_max = chunk_max
        self._deleted_max = gone_max
        self._chunks: list[_Chunk[Key]] = []
        self._chunk_of: dict[Key, _Chunk[Key]] = {}
        """Also of keys that are gone."""
        self._deleted: OrderedDict[Key, None] = OrderedDict()
        self._forgotten_version = 0
        self._is_open = False
        self._tidied = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._chunk_of) - len(self._deleted)

    def record(self, key: Key, version: int, *, is_deleted: bool = False) -> None:
        """Record that a key has changed, or is gone.

        Args:
            key: which.
            version: of this change; not earlier than any before.
            is_deleted: whether it is not there any more.
        """
        assert not self._chunks or version >= self._chunks[-1].version, "a change is noted after a later one (C4)"
        before = self._chunk_of.get(key)
        if before is None and is_deleted:
            return
        if before is not None:
            before.keys.discard(key)
        if not self._is_open or len(self._chunks[-1].keys) >= self._chunk_max:
            self._begin_chunk(version)
        chunk = self._chunks[-1]
        chunk.version = version
        chunk.keys.add(key)
        self._chunk_of[key] = chunk
        self._deleted.pop(key, None)
        if is_deleted:
            self._deleted[key] = None
            if len(self._deleted) > self._deleted_max:
                self._forget_first_deleted()

    def _begin_chunk(self, version: int) -> None:
        self._chunks.append(_Chunk(version))
        self._is_open = True
        for _ in range(_TIDIED_AT_ONCE):
            self._tidied = (self._tidied + 1) % len(self._chunks)
            if self._tidied < len(self._chunks) - _RECENT - 1:
                self._tidy(self._tidied)

    def _tidy(self, at: int) -> None:
        """Join a chunk with the next if both have become small. No chunk takes more memory than its keys do.

        A reader with a version between them gets more than it needs.
        """
        older, newer = self._chunks[at : at + 2]
        count = len(older.keys) + len(newer.keys)
        if count > self._chunk_max // 2 and older.keys and newer.keys:
            older.keys = set(older.keys)
            return
        small, large = sorted((older, newer), key=lambda chunk: len(chunk.keys))
        large.version = newer.version
        large.keys = large.keys | small.keys
        self._chunk_of.update(dict.fromkeys(small.keys, large))
        self._chunks[at : at + 2] = [large]

    def _forget_first_deleted(self) -> None:
        key, _ = self._deleted.popitem(last=False)
        chunk = self._chunk_of.pop(key)
        chunk.keys.discard(key)
        self._forgotten_version = max(self._forgotten_version, chunk.version)

    def knows(self, version: int) -> bool:
        """Return whether all changes since a version are known."""
        return version == 0 or version >= self._forgotten_version

    def chunks(self) -> Iterator[Set[Key]]:
        """Yield all keys, some at a time; what changes meanwhile may be missed."""
        for chunk in list(self._chunks):
            yield chunk.keys

    def since(self, version: int, upto: int | None) -> tuple[list[Key], int | None]:
        """Keys that have changed after a version that is known, the oldest change first, and perhaps some before it.

        Args:
            version: 0 for all that there is.
            upto: what has changed after this version is left for later, if it is given.

        Returns:
            At most `chunk_max` of them; and up to which version this is all if there are more.
        """
        self._is_open = False  # later changes are distinguished from these
        found: list[Key] = []
        last = version
        for index in range(bisect_right(self._chunks, version, key=lambda chunk: chunk.version), len(self._chunks)):
            chunk = self._chunks[index]
            if upto is not None and chunk.version > upto:
                return found, upto
            if len(found) + len(chunk.keys) > self._chunk_max:
                return found, last
            found += chunk.keys
            last = chunk.version
        return found, upto
