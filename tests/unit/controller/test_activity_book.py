"""What the samples of all masters say together, and what is kept of the last hour."""

from collections.abc import Mapping

from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_controller.activity.activity_book import ActivityBook
from popwheel_controller.activity.history import INTERVAL_MS, SAMPLES_MAX, UNKNOWN, History, Values

NOW_MS = 1_700_000_000_000


def sample(
    interval_ms: int = 10_000,
    topics: Mapping[str, int] | None = None,
    groups: Mapping[str, tuple[int, int, int]] | None = None,
    *,
    whole: bool = True,
    letters: int = 0,
) -> pb.SampleActivityResponse:
    """A master's sample; of each topic what went in, of each group what went out, its lag and that in time."""
    answer = pb.SampleActivityResponse(number=7, interval_ms=interval_ms, all_topics=whole, all_groups=whole)
    for name, count in (topics or {}).items():
        answer.topics.add(name=name, messages_in=count, lag=count)
        answer.totals.messages_in += count
    for name, (count, lag, lag_ms) in (groups or {}).items():
        answer.groups.add(name=name, messages_in=count, messages_out=count, lag=lag, lag_ms=lag_ms, waiting_ms=lag_ms)
        answer.totals.messages_out += count
        answer.totals.lag += lag
        answer.totals.lag_ms = max(answer.totals.lag_ms, lag_ms)
    answer.totals.lag += 0
    answer.totals.dead_letters = letters
    return answer


def taken(
    book: ActivityBook, at: int, samples: Mapping[str, pb.SampleActivityResponse], asked: tuple[str, ...] = ("a", "b")
) -> ActivityBook:
    for _ in book.take(NOW_MS + at * INTERVAL_MS, asked, samples):
        pass
    return book


def test_rates_and_lags_are_added_up_over_masters() -> None:
    book = taken(
        ActivityBook(History()),
        0,
        {
            "a": sample(topics={"t": 10}, groups={"g": (20, 5, 700)}),
            "b": sample(topics={"t": 30}, groups={"g": (0, 2, 9)}),
        },
    )
    assert book.rates() == (4.0, 2.0)
    assert book.topic("t").in_rate == 4.0
    assert book.group("g") == Values(2.0, 2.0, 7, 700, 0, 0)
    assert book.numbers == {"a": 7, "b": 7}


def test_a_topic_that_a_master_does_not_name_had_nothing_there_if_it_names_all() -> None:
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 10}), "b": sample()})
    assert book.topic("t").in_rate == 1.0
    assert book.topic("idle").in_rate == 0.0
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 10}), "b": sample(whole=False)})
    assert book.topic("t").in_rate is None
    assert book.topic("idle").in_rate is None


def test_a_master_that_has_just_begun_makes_rates_unknown_and_not_lower() -> None:
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 10}), "b": sample(0, topics={"t": 0})})
    assert book.rates() == (None, None)
    assert book.topic("t") == Values(None, None, 10, None, 0, 0)


def test_a_master_that_is_silent_makes_the_past_unknown() -> None:
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 10})})
    assert book.rates() == (1.0, 0.0), "of those that answered; a page says who did not"
    assert book.topic("t").in_rate is None
    assert book.history.of_cluster().values == [UNKNOWN]
    assert book.history.of("topic", "t").values == [UNKNOWN]


def test_the_past_has_a_value_for_each_interval() -> None:
    book = ActivityBook(History())
    both = {"a": sample(topics={"t": 10}, groups={"g": (10, 3, 50)}), "b": sample()}
    taken(book, 0, both)
    taken(book, 1, {"a": sample(), "b": sample()})
    taken(book, 3, both)
    topic, group = book.history.of("topic", "t"), book.history.of("group", "g")
    assert topic.since_ms == NOW_MS
    assert [each.in_rate for each in topic.values] == [1.0, 0.0, None, 1.0]
    assert [each.lag for each in topic.values] == [10, None, None, 10], "it may have a lag without any traffic"
    assert [(each.lag, each.lag_ms) for each in group.values] == [(3, 50), (0, 0), (None, None), (3, 50)]
    assert [each.in_rate for each in book.history.of_cluster().values] == [1.0, 0.0, None, 1.0]


def test_the_past_ends_after_an_hour() -> None:
    book = ActivityBook(History())
    for at in range(SAMPLES_MAX + 100):
        taken(book, at, {"a": sample(topics={"t": at}), "b": sample()})
    past = book.history.of("topic", "t")
    assert past.since_ms == NOW_MS + 100 * INTERVAL_MS
    assert [each.lag for each in past.values] == list(range(100, SAMPLES_MAX + 100))


def test_numbers_are_exact_however_large() -> None:
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 2**53 - 1}), "b": sample()})
    assert book.history.of("topic", "t").values[0].lag == 2**53 - 1


def test_the_key_that_was_active_least_recently_is_dropped_and_not_taken_for_idle() -> None:
    history = History(2)
    for number, name in enumerate(("a", "b", "a", "c")):
        history.begin(NOW_MS + number * INTERVAL_MS, UNKNOWN, all_topics=True, all_groups=True)
        history.add("topic", name, Values(1.0, 1.0, 1))
    assert len(history) == 2
    assert [each.in_rate for each in history.of("topic", "a").values] == [1.0, 0.0, 1.0, 0.0]
    assert [each.in_rate for each in history.of("topic", "b").values] == [None] * 4


def test_the_past_of_what_was_deleted_is_forgotten() -> None:
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 1, "u": 1}), "b": sample()})
    book.history.retain("topic", {"u"})
    assert [each.in_rate for each in book.history.of("topic", "t").values] == [0.0]
    assert [each.in_rate for each in book.history.of("topic", "u").values] == [0.1]


def test_two_samples_of_one_interval_are_one() -> None:
    book = ActivityBook(History())
    taken(book, 0, {"a": sample(), "b": sample()})
    for _ in book.take(NOW_MS + 1_000, ("a", "b"), {"a": sample(topics={"t": 5}), "b": sample()}):
        pass
    assert len(book.history.of_cluster().values) == 1


def test_dead_letters_of_the_last_ten_minutes() -> None:
    book = ActivityBook(History())
    assert book.new_dead_letters is None
    for at, letters in enumerate((3, 3, 5)):
        taken(book, at, {"a": sample(letters=letters), "b": sample()})
    assert book.new_dead_letters == 2
    taken(book, 3, {"a": sample(letters=9)})
    assert book.new_dead_letters is None
    for at in range(4, 70):
        taken(book, at, {"a": sample(letters=5), "b": sample()})
    assert book.new_dead_letters == 0


def test_all_is_forgotten_when_another_controller_leads() -> None:
    book = taken(ActivityBook(History()), 0, {"a": sample(topics={"t": 10}), "b": sample()})
    book.clear()
    assert (len(book), len(book.history), book.numbers, book.time_ms) == (0, 0, {}, None)
    assert book.history.of_cluster().values == []
