"""Sorted set of many changing names; a list continues behind a name, and its page costs only its length (pure)."""

from bisect import bisect_left, bisect_right, insort

_BLOCK_MAX = 1024


class SortedNames:
    """A set of names, in blocks of some hundreds. To add or to remove one costs a few microseconds among a million."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []
        """The last name of each block."""

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        if not self._blocks:
            self._blocks.append([name])
            self._lasts.append(name)
            return
        at = min(bisect_left(self._lasts, name), len(self._blocks) - 1)
        block = self._blocks[at]
        insort(block, name)
        if len(block) > _BLOCK_MAX:
            half = len(block) // 2
            self._blocks.insert(at, block[:half])
            self._lasts.insert(at, block[half - 1])
            del block[:half]
            at += 1
        self._lasts[at] = block[-1]

    def remove(self, name: str) -> None:
        """Take out a name that is there."""
        at = bisect_left(self._lasts, name)
        block = self._blocks[at]
        index = bisect_left(block, name)
        assert block[index] == name, "a name is gone that was not there"
        del block[index]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def behind(self, name: str, count: int) -> list[str]:
        """Return the first `count` names that come after a name."""
        found: list[str] = []
        at = bisect_right(self._lasts, name)
        while at < len(self._blocks) and len(found) < count:
            block = self._blocks[at]
            begin = 0 if found else bisect_right(block, name)
            found += block[begin : begin + count - len(found)]
            at += 1
        return found
