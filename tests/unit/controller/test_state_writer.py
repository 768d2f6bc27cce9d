"""A change is saved before anyone learns of it; what cannot be saved has not happened."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popwheel_common.contract.cluster_view import VERSIONS_PER_STORE, ClusterView
from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, ClusterUpdate, Topic, TopicType
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.state_writer import Decision, StateWriter
from popwheel_controller.store.state_store import ConflictError
from tests.unit.controller.changes import CHANGES, OPTIONS, Change, contents, fresh_state, snapshot_of


class Bench:
    """A state_writer whose saves the test lets through or makes fail."""

    def __init__(self, waiting_max: int = 1000) -> None:
        self.saved: list[ClusterState] = []
        self.published: list[ClusterUpdate] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.state_writer = StateWriter(
            fresh_state(), self._save, self._load, self.published.append, self._renew, waiting_max
        )
        self.stored_by_another: ClusterState | None = None
        self.answers_lost = False
        self.load_error: Exception | None = None
        self.state_writer.start(self.state_writer.state)

    async def change_brokers(self, decision: Decision) -> ClusterUpdate | None:
        return await self.state_writer.change_brokers(decision)

    def _renew(self) -> None:
        self.published.append(snapshot_of(self.state_writer.state))

    async def _save(self, state: ClusterState) -> None:
        await self.gate.wait()
        if self.answers_lost:
            self.saved.append(state)
            raise OSError("the answer was lost")
        if self.error is not None:
            raise self.error
        if self.stored_by_another is not None:
            raise ConflictError("cluster")
        self.saved.append(state)

    async def _load(self, known: int) -> ClusterState:
        if self.load_error is not None:
            raise self.load_error
        stored, self.stored_by_another = self.stored_by_another, None
        return stored or replace(self.saved[-1] if self.saved else fresh_state(), brokers={})


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.gate.set()
    await bench.state_writer.stop()


def topic(name: str) -> Change:
    return lambda state: state.create_topic(OPTIONS, name, TopicType.NORMAL)


def broker(name: str) -> Change:
    return lambda state: state.register_broker(BrokerInfo(name=name, address="host:1"))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nobody_learns_of_a_change_before_it_is_saved(bench: Bench) -> None:
    bench.gate.clear()
    change = asyncio.ensure_future(bench.state_writer.change(topic("a")))
    await turns()
    assert (change.done(), bench.published, bench.state_writer.state.version) == (False, [], 0)
    bench.gate.set()
    update = await change
    assert update is not None
    assert [saved.version for saved in bench.saved] == [1]
    assert (bench.published, list(bench.state_writer.state.topics)) == ([update], ["a"])


async def test_changes_that_wait_share_the_next_save(bench: Bench) -> None:
    bench.gate.clear()
    changes = [asyncio.ensure_future(bench.state_writer.change(topic(name))) for name in "a"]
    await turns()
    changes += [asyncio.ensure_future(bench.state_writer.change(topic(name))) for name in "bcd"]
    await turns()
    assert bench.state_writer.waiting == 3
    bench.gate.set()
    await asyncio.gather(*changes)
    assert [saved.version for saved in bench.saved] == [1, 4]
    assert [update.version for update in bench.published] == [1, 2, 3, 4]


async def test_no_more_changes_are_decided_at_once_than_may(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_controller.cluster.state_writer._TOGETHER_MAX", 2)
    await asyncio.gather(*(bench.state_writer.change(topic(name)) for name in "abcd"))
    assert [saved.version for saved in bench.saved] == [2, 4]
    assert [update.version for update in bench.published] == [1, 2, 3, 4]


async def test_a_refused_change_does_not_hold_up_the_others(bench: Bench) -> None:
    results = await asyncio.gather(
        *(bench.state_writer.change(topic(name)) for name in ("a", "a", "no good", "b")), return_exceptions=True
    )
    assert [getattr(result, "code", None) for result in results] == [
        None,
        Code.PRECONDITION_FAILED,
        Code.ILLEGAL_TOPIC,
        None,
    ]
    assert sorted(bench.state_writer.state.topics) == ["a", "b"]


async def test_whose_answer_was_lost_is_read_before_the_next_change(bench: Bench) -> None:
    """It is said that the outcome is not known, and what was stored is what counts, for the watchers, too."""
    view = ClusterView()
    view.apply(snapshot_of(bench.state_writer.state))
    await bench.state_writer.change(topic("a"))
    bench.answers_lost = True
    with pytest.raises(StatusError, match="not known whether the change was saved"):
        await bench.state_writer.change(lambda state: state.delete_topic("a"))
    bench.answers_lost = False
    await bench.change_brokers(broker("b-0"))
    await bench.state_writer.change(topic("b"))
    assert (list(bench.state_writer.state.topics), list(bench.state_writer.state.brokers)) == (["b"], ["b-0"])
    assert list(bench.saved[-1].topics) == ["b"]
    for update in bench.published:
        view.apply(update)
    assert (view.version, contents(view)) == (bench.state_writer.state.version, contents(bench.state_writer.state))


async def test_a_save_that_was_made_twice_on_its_way_has_come_about(bench: Bench) -> None:
    view = ClusterView()
    view.apply(snapshot_of(bench.state_writer.state))
    first = fresh_state()
    bench.stored_by_another = replace(first.after(first.create_topic(OPTIONS, "a", TopicType.NORMAL)), version=2)
    results = await asyncio.gather(bench.state_writer.change(topic("a")), bench.change_brokers(broker("b-0")))
    assert all(update is not None for update in results)
    for update in bench.published:
        view.apply(update)
    assert contents(view) == contents(bench.state_writer.state)
    assert (list(view.topics), list(view.brokers)) == (["a"], ["b-0"])


@pytest.mark.parametrize("error", [CorruptDataError("bad bytes"), UnknownFormatError("no magic"), KeyError("what?")])
async def test_a_stored_state_that_cannot_be_read_refuses_changes_and_no_more(bench: Bench, error: Exception) -> None:
    bench.stored_by_another = fresh_state()
    bench.load_error = error
    for _ in range(2):
        with pytest.raises(StatusError, match=re.escape(str(error))):
            await bench.state_writer.change(topic("a"))
        await bench.change_brokers(lambda state: None)
    await bench.change_brokers(broker("b-0"))
    assert list(bench.state_writer.state.brokers) == ["b-0"]
    bench.load_error = None
    await bench.state_writer.change(topic("b"))
    assert list(bench.state_writer.state.topics) == ["b"]


async def test_what_cannot_be_saved_has_not_happened(bench: Bench) -> None:
    bench.error = OSError(28, "No space left on device")
    results = await asyncio.gather(
        bench.state_writer.change(topic("a")), bench.change_brokers(broker("b-0")), return_exceptions=True
    )
    assert isinstance(results[0], StatusError)
    assert results[0].code == Code.INTERNAL_SERVER_ERROR
    assert "No space left" in results[0].message
    assert (list(bench.state_writer.state.topics), list(bench.state_writer.state.brokers)) == ([], ["b-0"])
    assert [(update.version, bool(update.brokers)) for update in bench.published] == [(1, True)]
    bench.error = None
    await bench.state_writer.change(topic("a"))
    assert list(bench.state_writer.state.topics) == ["a"]


async def test_what_another_controller_has_stored_is_kept(bench: Bench) -> None:
    """A change that meets another's is decided anew on what that made of the cluster, and watchers learn of both."""
    await bench.change_brokers(broker("b-0"))
    other = fresh_state()
    bench.stored_by_another = other.after(other.create_topic(OPTIONS, "a", TopicType.NORMAL))
    results = await asyncio.gather(
        bench.state_writer.change(topic("a")), bench.state_writer.change(topic("b")), return_exceptions=True
    )
    assert isinstance(results[0], StatusError)
    assert results[0].code == Code.PRECONDITION_FAILED
    assert (sorted(bench.state_writer.state.topics), list(bench.state_writer.state.brokers)) == (["a", "b"], ["b-0"])
    assert sorted(bench.saved[-1].topics) == ["a", "b"]
    view = ClusterView()
    for update in bench.published:
        view.apply(update)
    assert contents(view)[:3] == contents(bench.state_writer.state)[:3]


async def test_it_can_be_started_again(bench: Bench) -> None:
    await bench.state_writer.stop()
    with pytest.raises(StatusError, match="stopping"):
        await bench.state_writer.change(topic("a"))
    bench.state_writer.start(bench.state_writer.state)
    await bench.state_writer.change(topic("a"))
    assert list(bench.state_writer.state.topics) == ["a"]


async def test_a_decision_that_breaks_is_notified_to_its_asker_alone(bench: Bench) -> None:
    def broken(state: ClusterState) -> ClusterUpdate:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await bench.state_writer.change(broken)
    await bench.state_writer.change(topic("a"))


async def test_brokers_are_not_saved_and_need_no_save(bench: Bench) -> None:
    await bench.change_brokers(broker("b-0"))
    assert (bench.saved, list(bench.state_writer.state.brokers)) == ([], ["b-0"])


async def test_no_more_changes_wait_than_may() -> None:
    bench = Bench(waiting_max=2)
    bench.gate.clear()
    changes = [asyncio.ensure_future(bench.state_writer.change(topic("a")))]
    await turns()
    changes += [asyncio.ensure_future(bench.state_writer.change(topic(name))) for name in "bc"]
    await turns()
    with pytest.raises(StatusError) as caught:
        await bench.state_writer.change(topic("d"))
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    bench.gate.set()
    await asyncio.gather(*changes)
    await bench.state_writer.stop()


async def test_an_asker_that_goes_away_does_not_stop_the_change(bench: Bench) -> None:
    bench.gate.clear()
    change = asyncio.ensure_future(bench.state_writer.change(topic("a")))
    await turns()
    change.cancel()
    await turns()
    bench.gate.set()
    await bench.state_writer.change(topic("b"))
    assert sorted(bench.state_writer.state.topics) == ["a", "b"]


async def test_stopping_finishes_what_waits_and_refuses_the_rest() -> None:
    bench = Bench()
    bench.gate.clear()
    changes = [asyncio.ensure_future(bench.state_writer.change(topic(name))) for name in "ab"]
    await turns()
    stopping = asyncio.ensure_future(bench.state_writer.stop())
    await turns()
    with pytest.raises(StatusError, match="stopping"):
        await bench.state_writer.change(topic("c"))
    bench.state_writer.change_brokers(broker("b-0"))
    bench.gate.set()
    await stopping
    assert [change.done() for change in changes] == [True, True]
    assert sorted(bench.saved[-1].topics) == ["a", "b"]


@given(batches=st.lists(st.tuples(st.lists(CHANGES, max_size=6), st.booleans()), max_size=8))
async def test_what_is_published_is_the_state_whatever_fails(batches: list[tuple[list[Change], bool]]) -> None:
    bench = Bench()
    view = ClusterView()
    view.apply(snapshot_of(bench.state_writer.state))
    for changes, fails in batches:
        bench.error = OSError(5, "Input/output error") if fails else None
        await asyncio.gather(*(bench.state_writer.change(change) for change in changes), return_exceptions=True)
        for update in bench.published:
            view.apply(update)
        bench.published.clear()
        assert (view.version, contents(view)) == (bench.state_writer.state.version, contents(bench.state_writer.state))
        durable = bench.saved[-1] if bench.saved else fresh_state()
        assert (durable.topics, durable.groups) == (bench.state_writer.state.topics, bench.state_writer.state.groups)
    await bench.state_writer.stop()


async def test_who_gives_up_waiting_for_its_end_may_ask_again(bench: Bench) -> None:
    """A lead ends as the process does: the first end is cancelled, the second one must not meet that."""
    bench.gate.clear()
    change = asyncio.ensure_future(bench.state_writer.change(topic("t")))
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(bench.state_writer.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    bench.gate.set()
    await bench.state_writer.stop()
    assert (await change) is not None
    assert [list(state.topics) for state in bench.saved] == [["t"]]


@pytest.mark.parametrize("answer_is_lost", [False, True])
async def test_a_state_of_another_cluster_id_takes_the_place_of_a_larger_version(
    bench: Bench, answer_is_lost: bool
) -> None:
    """Also when it is not known whether it was saved: what is stored counts, whatever its version is (recovery)."""
    await bench.state_writer.change(topic("now"))
    bench.state_writer.state = replace(bench.state_writer.state, version=9 * VERSIONS_PER_STORE)
    await bench.change_brokers(broker("b-0"))
    back = Topic(name="t", type=TopicType.FIFO, queues=4, id=17)
    recovered = ClusterUpdate(snapshot=True, version=1_000_017, named=1_000_017, topics=[back])
    bench.answers_lost = answer_is_lost
    if answer_is_lost:
        with pytest.raises(StatusError, match="it is not known whether the change was saved"):
            await bench.state_writer.change(lambda _: recovered)
        bench.answers_lost = False
    else:
        await bench.state_writer.change(lambda _: recovered)
    created = await bench.state_writer.change(topic("new"))
    assert (
        created is not None and created.topics[0].id == created.version == bench.state_writer.state.named == 1_000_018
    )
    assert {*bench.state_writer.state.topics} == {"t", "new"} and {*bench.state_writer.state.brokers} == {"b-0"}
    assert any(update.snapshot and update.version == 1_000_017 for update in bench.published)
