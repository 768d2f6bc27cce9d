"""Activity of the cluster, summed over the masters' samples: rates, lags, and the last hour (pure).

A rate is known if every master reports its messages since the previous sample. A master that just took over or was
not asked makes the rate unknown, not lower.
"""

from collections.abc import Collection, Iterator, Mapping
from heapq import nlargest
from typing import Final, NamedTuple

from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_controller.activity.history import KEYS_MAX, UNKNOWN, History, Kind, Values

GROWTH_SAMPLES: Final = 60
"""Dead letters are compared with those of ten minutes ago."""
_STEP: Final = 200


class GroupNow(NamedTuple):
    """A consumer group by the latest samples.

    Args:
        values: its numbers.
        waiting_ms: age of the oldest message that no consumer has received yet.
    """

    values: Values
    waiting_ms: int | None


class ActivityBook:
    """Latest samples of all brokers, and the history of their sums.

    Args:
        history: values of the last hour.
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self._reset()

    def _reset(self) -> None:
        self.numbers: dict[str, int] = {}
        """Numbers of each broker's last sample."""
        self.samples: Mapping[str, pb.SampleActivityResponse] = {}
        """Latest sample of each broker that has answered."""
        self.time_ms: int | None = None
        """Wall-clock time of the latest samples, in milliseconds."""
        self.topics: dict[str, Values] = {}
        self.groups: dict[str, GroupNow] = {}
        self._all_topics = self._all_groups = False
        self._letters: list[int | None] = []

    def __len__(self) -> int:
        """Number of topics and groups in the latest samples."""
        return len(self.topics) + len(self.groups)

    def take(
        self, now_ms: int, asked: Collection[str], samples: Mapping[str, pb.SampleActivityResponse]
    ) -> Iterator[None]:
        """Add a round of samples; yield between two steps of about a millisecond each.

        Args:
            now_ms: the wall clock.
            asked: all brokers.
            samples: of the brokers that have answered.
        """
        self.numbers = {name: sample.number for name, sample in samples.items()}
        are_all = len(samples) == len(asked)
        topics, groups = dict[str, _Sum](), dict[str, _Sum]()
        yield from self._add_up(samples, topics, groups)
        whole_topics = {name for name, each in samples.items() if each.interval_ms and each.all_topics}
        whole_groups = {name for name, each in samples.items() if each.interval_ms and each.all_groups}
        self._all_topics = are_all and len(whole_topics) == len(samples)
        self._all_groups = are_all and len(whole_groups) == len(samples)
        found_topics, found_groups = dict[str, Values](), dict[str, GroupNow]()
        for number, (name, each) in enumerate(topics.items()):
            found_topics[name] = each.values(are_all and samples.keys() <= each.brokers | whole_topics)
            if number % _STEP == 0:
                yield
        for number, (name, each) in enumerate(groups.items()):
            values = each.values(are_all and samples.keys() <= each.brokers | whole_groups)
            found_groups[name] = GroupNow(values, each.waiting_ms)
            if number % _STEP == 0:
                yield
        self.time_ms, self.samples = now_ms, samples
        self.topics, self.groups = found_topics, found_groups
        self._record_dead_letters(are_all)
        if (samples or self.history.has_begun) and self.history.begin(
            now_ms, self.cluster(are_all=are_all), all_topics=self._all_topics, all_groups=self._all_groups
        ):
            yield from self._record_history()

    def _add_up(
        self, samples: Mapping[str, pb.SampleActivityResponse], topics: dict[str, "_Sum"], groups: dict[str, "_Sum"]
    ) -> Iterator[None]:
        for broker, sample in samples.items():
            for number, topic in enumerate(sample.topics):
                topics.setdefault(topic.name, _Sum()).add_topic(broker, topic, sample.interval_ms)
                if number % _STEP == 0:
                    yield
            for number, group in enumerate(sample.groups):
                groups.setdefault(group.name, _Sum()).add_group(broker, group, sample.interval_ms)
                if number % _STEP == 0:
                    yield

    def _record_history(self) -> Iterator[None]:
        rows_of: dict[Kind, list[tuple[str, Values]]] = {
            "topic": list(self.topics.items()),
            "group": [(name, each.values) for name, each in self.groups.items()],
        }
        for kind, rows in rows_of.items():
            chosen = nlargest(KEYS_MAX, rows, key=_weight) if len(rows) > KEYS_MAX else rows
            for number, (name, values) in enumerate(chosen):
                self.history.add(kind, name, values)
                if number % _STEP == 0:
                    yield

    def _record_dead_letters(self, are_all: bool) -> None:
        totals = [each.totals.dead_letters for each in self.samples.values() if each.totals.HasField("dead_letters")]
        self._letters.append(sum(totals) if are_all and len(totals) == len(self.samples) else None)
        del self._letters[:-GROWTH_SAMPLES]

    @property
    def new_dead_letters(self) -> int | None:
        """Number of dead letters added within the last ten minutes; None if it is not known."""
        known = [each for each in self._letters if each is not None]
        return known[-1] - min(known) if known and self._letters[-1] is not None else None

    def cluster(self, *, are_all: bool) -> Values:
        """Totals of the cluster by the latest samples.

        Args:
            are_all: all brokers have answered; if not, only their rates are shown.
        """
        if not self.samples or not are_all:
            return UNKNOWN
        totals = [each.totals for each in self.samples.values()]
        lags = [each.lag for each in totals if each.HasField("lag")]
        ages = [each.lag_ms for each in totals if each.HasField("lag_ms")]
        return Values(
            *self.rates(),
            sum(lags) if len(lags) == len(totals) else None,
            max(ages) if len(ages) == len(totals) else None,
            sum(each.in_flight for each in totals),
            sum(each.delayed for each in totals),
        )

    def rates(self) -> tuple[float | None, float | None]:
        """Messages per second into the brokers that have answered, and delivered by them."""
        if not self.samples or not all(each.interval_ms for each in self.samples.values()):
            return None, None
        return (
            sum(_rate(each.totals.messages_in, each.interval_ms) for each in self.samples.values()),
            sum(_rate(each.totals.messages_out, each.interval_ms) for each in self.samples.values()),
        )

    def topic(self, name: str) -> Values:
        """Rates of a topic; 0 for a topic that no sample names, if the samples named all active ones."""
        absent = Values(in_rate=0.0, out_rate=0.0) if self._all_topics else UNKNOWN
        return self.topics.get(name, absent)

    def group(self, name: str) -> Values:
        """Rates and lags of a group, by the same rule."""
        found = self.groups.get(name)
        if found is not None:
            return found.values
        return Values(in_rate=0.0, out_rate=0.0) if self._all_groups else UNKNOWN

    def clear(self) -> None:
        """Drop all samples: this controller no longer leads."""
        self.history = History()
        self._reset()


class _Sum:
    """Sums of one topic or group over all brokers that name it."""

    __slots__ = ("_has_rates", "_in_rate", "_lag", "_lag_ms", "_out_rate", "brokers", "delayed", "held", "waiting_ms")

    def __init__(self) -> None:
        self.brokers: set[str] = set()
        self._has_rates = True
        self._in_rate: float | None = 0.0
        self._out_rate = 0.0
        self._lag: int | None = 0
        self._lag_ms: int | None = 0
        self.waiting_ms: int | None = None
        self.held = 0
        self.delayed = 0

    def add_topic(self, broker: str, activity: pb.TopicActivity, interval_ms: int) -> None:
        """Add a broker's activity of a topic."""
        self._add(broker, activity.messages_in, activity.messages_out, interval_ms)
        self._lag = None if self._lag is None or not activity.HasField("lag") else self._lag + activity.lag
        self._lag_ms = None
        self.delayed += activity.delayed

    def add_group(self, broker: str, activity: pb.GroupActivity, interval_ms: int) -> None:
        """Add a broker's activity of a group."""
        self._add(
            broker,
            activity.messages_in if activity.HasField("messages_in") else None,
            activity.messages_out,
            interval_ms,
        )
        self._lag = None if self._lag is None or not activity.HasField("lag") else self._lag + activity.lag
        self._lag_ms = (
            None if self._lag_ms is None or not activity.HasField("lag_ms") else max(self._lag_ms, activity.lag_ms)
        )
        if activity.HasField("waiting_ms"):
            self.waiting_ms = max(activity.waiting_ms, self.waiting_ms or 0)
        self.held += activity.in_flight

    def _add(self, broker: str, messages_in: int | None, messages_out: int, interval_ms: int) -> None:
        self.brokers.add(broker)
        self._has_rates &= interval_ms > 0
        if self._has_rates:
            self._out_rate += _rate(messages_out, interval_ms)
            if messages_in is None or self._in_rate is None:
                self._in_rate = None
            else:
                self._in_rate += _rate(messages_in, interval_ms)

    def values(self, is_whole: bool) -> Values:
        """Return the sums; rates and lags are known if brokers that do not name it have nothing of it."""
        has_rates = is_whole and self._has_rates
        return Values(
            self._in_rate if has_rates else None,
            self._out_rate if has_rates else None,
            self._lag if is_whole else None,
            self._lag_ms if is_whole else None,
            self.held if is_whole else None,
            self.delayed if is_whole else None,
        )


def _rate(messages: int, interval_ms: int) -> float:
    return round(messages * 1000 / interval_ms, 3)


def _weight(row: tuple[str, Values]) -> float:
    values = row[1]
    return (values.in_rate or 0.0) + (values.out_rate or 0.0) + (values.lag or 0)
