"""What readers read: added, removed, replaced, and what is refused; against a plain model."""

import random
from collections import defaultdict

import pytest

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.lite.lite_subscriptions import PAIRS_OF_CLIENT_MAX, LiteSubscriptions, Reader
from popwheel_proxy.protocol.errors import LimitError

ANNA = Reader("chat", "Sessions", "anna")
BERT = Reader("chat", "Sessions", "bert")


def test_what_a_reader_reads() -> None:
    book = LiteSubscriptions(per_client_max=3, total_max=100)
    assert ANNA not in book and book.names(ANNA) == frozenset()
    assert book.add(ANNA, ["a", "b", "a"], 1.0) == {"a", "b"}
    assert book.add(ANNA, ["b", "c"], 2.0) == {"c"}
    book.remove(ANNA, ["a", "never"], 3.0)
    assert book.names(ANNA) == {"b", "c"}
    book.replace(ANNA, ["x"], 4.0)
    assert book.names(ANNA) == {"x"}
    assert len(book) == 1
    book.remove(BERT, ["x"], 4.0)
    assert BERT not in book, "who reads nothing was put down"
    book.replace(BERT, [], 4.0)
    assert (book.readers, book.of_client("bert"), len(book)) == ([ANNA, BERT], [BERT], 1)
    assert book.not_said_since(3.9, 9) == []
    assert (book.not_said_since(4.0, 1), book.not_said_since(4.0, 9)) == ([ANNA], [ANNA, BERT])
    book.reported(ANNA, 9.0)
    assert book.not_said_since(4.0, 9) == [BERT]
    book.reported(BERT, 9.0)
    book.add(ANNA, ["y"], 9.5)
    assert book.not_said_since(9.2, 9) == [BERT]
    for reader in (ANNA, BERT, BERT):
        book.end(reader)
    assert (book.readers, book.of_client("bert"), len(book)) == ([], [], 0)


def test_of_many_readers_those_of_whom_nothing_was_said_for_longest_come_first_and_in_parts() -> None:
    book = LiteSubscriptions(per_client_max=3, total_max=100_000)
    readers = [Reader("chat", "Sessions", f"client {number}") for number in range(1_500)]
    for reader in readers:
        book.add(reader, ["a"], 1.0)
    book.add(readers[0], ["b"], 2.0)
    assert book.not_said_since(1.0, 1_000) == readers[1:1_001]
    for reader in readers[1:1_001]:
        book.reported(reader, 2.0)
    assert book.not_said_since(1.0, 1_000) == readers[1_001:]
    assert book.not_said_since(2.0, 1_000)[:499] == readers[1_001:]


def test_a_client_reads_no_more_than_it_may() -> None:
    book = LiteSubscriptions(per_client_max=3, total_max=100)
    book.add(ANNA, ["a", "b"], 1.0)
    for act in (book.add, book.replace):
        with pytest.raises(LimitError) as refused:
            act(ANNA, ["c", "d", "e", "f"] if act == book.replace else ["c", "d"], 2.0)
        assert (refused.value.code, refused.value.limit) == (
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            "lite_subscriptions_max",
        )
        assert book.names(ANNA) == {"a", "b"}
        assert book.not_said_since(1.0, 9) == [ANNA]
    book.replace(ANNA, ["c", "d", "e"], 2.0)
    assert book.names(ANNA) == {"c", "d", "e"}


def test_a_client_reads_for_a_limited_number_of_groups_and_topics() -> None:
    """So its goodbye is short."""
    book = LiteSubscriptions(per_client_max=3, total_max=10_000)
    for number in range(PAIRS_OF_CLIENT_MAX):
        book.add(Reader(f"g{number}", "Sessions", "anna"), "a", 1.0)
    for act in (book.add, book.replace):
        with pytest.raises(LimitError) as refused:
            act(ANNA, ["a"], 2.0)
        assert (refused.value.code, refused.value.limit) == (
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            "lite_pairs_per_client_max",
        )
    book.replace(Reader("g1", "Sessions", "anna"), ["b"], 2.0)
    book.add(BERT, ["a"], 2.0)
    book.end(Reader("g1", "Sessions", "anna"))
    book.add(ANNA, ["a"], 2.0)


def test_one_group_leaves_room_for_others() -> None:
    book = LiteSubscriptions(per_client_max=100, total_max=20)
    book.add(ANNA, map(str, range(9)), 1.0)
    for act in (book.add, book.replace):
        with pytest.raises(LimitError) as refused:
            act(BERT, ["x", "y"], 1.0)
        assert refused.value.limit == "lite_subscriptions_total_max"
        assert BERT not in book
    book.replace(ANNA, map(str, range(9, 18)), 2.0)  # as many as before
    other = Reader("other", "Sessions", "carl")
    assert book.add(other, "ab", 1.0) == {"a", "b"}


@pytest.mark.parametrize("seed", range(3))
def test_it_reads_what_a_model_reads(seed: int) -> None:
    chance = random.Random(seed)
    book, model = LiteSubscriptions(6, 1_000), defaultdict[Reader, set[str]](set)
    readers = [Reader(f"g{n % 2}", f"t{n % 3}", f"c{n % 4}") for n in range(8)]
    for _ in range(500):
        reader = chance.choice(readers)
        names = set(chance.choices("abcdefgh", k=chance.randrange(4)))
        match chance.randrange(4):
            case 0 if len(model[reader] | names) <= 6:
                assert book.add(reader, names, 0.0) == names - model[reader]
                model[reader] |= names
            case 1:
                book.remove(reader, names, 0.0)
                model[reader] -= names
            case 2:
                book.replace(reader, names, 0.0)
                model[reader] = set(names)
            case _:
                book.end(reader)
                model.pop(reader, None)
        assert all(book.names(each) == model.get(each, set()) for each in readers)
        assert len(book) == sum(map(len, model.values()))
        assert all(each in book.of_client(each.client_id) for each in book.readers)
