"""What is remembered of acknowledgements, and how much."""

from popwheel_broker.consume.ack_memory import DELIVERIES_MAX, AckMemory
from popwheel_broker.consume.delivery import Delivery
from popwheel_common.contract.receipt import FROM_TOPIC


def delivery(number: int, *offsets: int) -> Delivery:
    return Delivery(number, "g", "t", FROM_TOPIC, 0, offsets[0], offsets[-1] + 1, 0, 1000, 1000, 0, offsets)


def test_messages_are_known_one_by_one() -> None:
    memory = AckMemory()
    given = delivery(8, 3, 5, 9)
    memory.record(given, 0b001, 0)
    memory.record(given, 0b100, 0)
    assert [memory.has(8, offset, 0) for offset in (3, 5, 9, 4)] == [True, False, True, False]
    assert not memory.has(9, 3, 0)


def test_what_another_call_has_done_is_not_taken_for_this_one() -> None:
    memory = AckMemory()
    given = delivery(8, 3, 5, 9)
    memory.record(given, 0b001, 71)
    memory.record(given, 0b010, 72)
    memory.record(given, 0b100, 0)
    known = [[memory.has(8, offset, call) for offset in (3, 5, 9)] for call in (71, 72, 73)]
    assert known == [[True, False, True], [False, True, True], [False, False, True]]
    assert all(memory.has(8, offset, 0) for offset in (3, 5, 9)), "of who does not say it nothing is known"


def test_the_call_may_be_reported_later() -> None:
    memory = AckMemory()
    given = delivery(8, 3, 5)
    memory.record(given, 0b01, 71)
    memory.record(given, 0b10, 0)
    memory.name(8, 0b11, 72)
    memory.name(9, 0b11, 72)
    assert [memory.has(8, offset, 72) for offset in (3, 5)] == [False, True]
    assert [memory.has(8, offset, 73) for offset in (3, 5)] == [False, False]


def test_only_the_latest_are_known() -> None:
    memory = AckMemory()
    for number in range(DELIVERIES_MAX):
        memory.record(delivery(number, 0, 1), 1, 0)
    memory.record(delivery(0, 0, 1), 2, 0)
    for number in range(100):
        memory.record(delivery(DELIVERIES_MAX + number, 0), 1, 0)
    assert len(memory) == DELIVERIES_MAX
    assert memory.has(0, 0, 0), "what was added to stays for as long as what is new"
    assert [memory.has(number, 0, 0) for number in (1, 100, 101)] == [False, False, True]
