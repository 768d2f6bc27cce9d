"""A generator that runs in a thread, one item ahead: order, errors, and its end."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import closing

import pytest

from popwheel_spark.source.one_ahead import OneAhead


class Numbers:
    """Numbers that are made one after the other.

    Args:
        count: how many; then an error, or an item that never comes.
    """

    def __init__(self, count: int, behind: str = "") -> None:
        self.count, self.behind = count, behind
        self.made = [threading.Event() for _ in range(count)]
        self.ended = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                self.made[number].set()
                yield number
            if self.behind == "error":
                raise ValueError("no more")
            if self.behind == "nothing":
                await asyncio.Event().wait()
        finally:
            self.ended = True


def threads() -> int:
    return sum(each.name == "one-ahead" for each in threading.enumerate())


def test_the_next_item_is_made_while_one_is_processed_and_no_other() -> None:
    numbers = Numbers(5)
    with closing(OneAhead(numbers.items())) as ahead:
        for number in ahead:
            if number < 4:
                assert numbers.made[number + 1].wait(10)
            assert not any(made.is_set() for made in numbers.made[number + 2 :])
    assert number == 4 and numbers.ended and not threads()


def test_an_error_comes_behind_the_items_before_it() -> None:
    numbers = Numbers(3, "error")
    with closing(OneAhead(numbers.items())) as ahead:
        items = iter(ahead)
        assert [next(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="no more"):
            next(items)
    assert numbers.ended and not threads()


def test_what_an_item_waits_for_is_given_up_at_the_end() -> None:
    numbers = Numbers(1, "nothing")
    with closing(OneAhead(numbers.items())) as ahead:
        assert next(iter(ahead)) == 0
    assert numbers.ended and not threads()


def test_one_that_nobody_asks_ends_too() -> None:
    numbers = Numbers(0)
    with closing(OneAhead(numbers.items())):
        pass
    assert not threads()
