"""What the judge of a run makes of deliveries of one message."""

from unittest.mock import Mock

import pytest

from tests.sim.checker import Checker
from tests.sim.history import Delivery, Handle, History

GROUP, TOPIC = "group0", "topic0"
LIFE = 1_000_000
START_MS = 1_800_000_000_000


def delivery(number: int, pop_ms: int, got_s: float, message_id: str = "m", broker: str = "a") -> Delivery:
    handle = Handle(number, START_MS + pop_ms, 3000, False, 0, 0, broker)
    return Delivery(GROUP, TOPIC, message_id, str(number), handle, 1, got_s - 0.01, got_s, 0)


def broken(*deliveries: Delivery) -> list[str]:
    checker = Checker(
        Mock(subscriptions=[], groups={GROUP: 16}, faults={}), History(deliveries=list(deliveries)), [], {}
    )
    checker._check_overlaps()
    checker._check_numbers()
    return [each.partition(":")[0] for each in checker._verdict.violations]


@pytest.mark.parametrize(
    ("second", "numbers"),
    [
        (delivery(LIFE + 2, 3999, 4.0), ["P2"]),
        (delivery(LIFE + 2, 4001, 4.02), []),
        # The next life's clock goes on where the log leaves off, which may be some time before.
        (delivery(2 * LIFE + 1, 2500, 4.02), []),
        (delivery(2 * LIFE + 1, 9000, 3.5), ["P2"]),
    ],
)
def test_a_message_is_hidden_until_its_time_by_the_clock_of_one_life_and_by_ours_over_several(
    second: Delivery, numbers: list[str]
) -> None:
    assert broken(delivery(LIFE + 1, 1000, 1.005), second) == numbers


def test_a_number_names_one_pop_of_a_broker() -> None:
    first, of_the_same_pop = delivery(LIFE, 1000, 1.0, "a"), delivery(LIFE, 1000, 1.0, "b")
    assert broken(first, of_the_same_pop) == []
    assert broken(first, delivery(LIFE, 8000, 8.0, "b")) == ["P7"]
    assert broken(first, delivery(LIFE, 8000, 8.0, "b", broker="b")) == []
