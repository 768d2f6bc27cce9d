"""What readers read: added, removed, replaced, and what is refused; against a plain model."""

import random
from collections import defaultdict

import pytest

from services.common.pb.apache.rocketmq.v2.definition_pb2 import Code
from services.proxy.errors import LimitError
from services.proxy.lite.lite_subscriptions import LiteSubscriptions, Reader

ANNA = Reader("chat", "Sessions", "anna")
BERT = Reader("chat", "Sessions", "bert")


def test_what_a_reader_reads() -> None:
    book = LiteSubscriptions(each_max=3, total_max=100)
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
    assert book.not_said_since(3.9) == []
    book.told(BERT, 9.0)
    assert book.not_said_since(4.0) == [ANNA]
    for reader in (ANNA, BERT, BERT):
        book.end(reader)
    assert (book.readers, book.of_client("bert"), len(book)) == ([], [], 0)


def test_a_client_reads_no_more_than_it_may() -> None:
    book = LiteSubscriptions(each_max=3, total_max=100)
    book.add(ANNA, ["a", "b"], 1.0)
    for act in (book.add, book.replace):
        with pytest.raises(LimitError) as refused:
            act(ANNA, ["c", "d", "e", "f"] if act == book.replace else ["c", "d"], 2.0)
        assert (refused.value.code, refused.value.limit) == (
            Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
            "lite_subscriptions_max",
        )
        assert book.names(ANNA) == {"a", "b"}
        assert book.not_said_since(1.0) == [ANNA]
    book.replace(ANNA, ["c", "d", "e"], 2.0)
    assert book.names(ANNA) == {"c", "d", "e"}


def test_one_group_leaves_room_for_others() -> None:
    book = LiteSubscriptions(each_max=100, total_max=20)
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
