"""What a map holds, and in which order that has changed: so that one who knows an older version gets only the rest."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

_DEAD_CHANGES_MIN = 1024


class Changes(Generic[Key, Value]):
    """A map that remembers the version of each key's last change.

    Args:
        gone_max: how many keys that are gone are remembered. Who knows only a version from before that has to take
            everything.
    """

    def __init__(self, gone_max: int) -> None:
        self._gone_max = gone_max
        self._values: dict[Key, Value] = {}
        self._versions_of: dict[Key, int] = {}
        """Also of keys that are gone."""
        self._versions: list[int] = []
        self._keys: list[Key] = []
        """Key of each change; the change is dead if the key has changed again since."""
        self._forgotten_version = 0

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._values)

    @property
    def values(self) -> Mapping[Key, Value]:
        """What is there."""
        return self._values

    def set(self, key: Key, value: Value, version: int) -> None:
        """A key has a new value.

        Args:
            key: which.
            value: its value.
            version: of this change; later than all before.
        """
        self._values[key] = value
        self._changed(key, version)

    def remove(self, key: Key, version: int) -> None:
        """A key is gone; arguments as of `set`."""
        del self._values[key]
        self._changed(key, version)

    def _changed(self, key: Key, version: int) -> None:
        self._versions_of[key] = version
        self._versions.append(version)
        self._keys.append(key)
        if len(self._keys) > 2 * len(self._versions_of) + _DEAD_CHANGES_MIN:
            self._drop_dead()
        if len(self._versions_of) - len(self._values) > self._gone_max:
            self._forget_gone()

    def _living(self, begin: int) -> Iterator[tuple[int, Key]]:
        for index in range(begin, len(self._keys)):
            version, key = self._versions[index], self._keys[index]
            if self._versions_of.get(key) == version:
                yield version, key

    def _drop_dead(self) -> None:
        living = list(self._living(0))
        self._versions = [version for version, _ in living]
        self._keys = [key for _, key in living]

    def _forget_gone(self) -> None:
        """Forget the older half of what is gone."""
        gone = [(version, key) for version, key in self._living(0) if key not in self._values]
        for version, key in gone[: len(gone) // 2 + 1]:
            del self._versions_of[key]
            self._forgotten_version = version
        self._drop_dead()

    def knows(self, version: int) -> bool:
        """Whether all that has changed since a version can be told."""
        return version == 0 or version >= self._forgotten_version

    def since(self, version: int, count: int) -> tuple[list[tuple[Key, Value | None]], int | None]:
        """What has changed after a version that is known, the oldest change first.

        Args:
            version: 0 for all that there is.
            count: how many at the most.

        Returns:
            Keys with their values, None for one that is gone; and the version of the last one if there are more.
        """
        found: list[tuple[Key, Value | None]] = []
        last = version
        for changed, key in self._living(bisect_right(self._versions, version)):
            value = self._values.get(key)
            if value is None and version == 0:
                continue
            if len(found) == count:
                return found, last
            found.append((key, value))
            last = changed
        return found, None
