"""Topics and groups in pages: what was saved is found, whatever fails, and no document grows with their number."""

import contextlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from popwheel_common.errors import CorruptDataError, StatusError, UnknownFormatError
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo, Topic, TopicType
from popwheel_controller.cluster.alteration import TopicSettings, alter_topic
from popwheel_controller.cluster.cluster_book import ClusterBook, Entry, bytes_of, cluster_of
from popwheel_controller.cluster.cluster_state import ClusterState
from popwheel_controller.cluster.metrics import ClusterMetrics
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.cluster.stored_cluster import StoredCluster
from popwheel_controller.kubernetes.state_store import KubernetesStateStore
from popwheel_controller.options import ControllerOptions
from popwheel_controller.store.file_state_store import FileStateStore
from popwheel_controller.store.state_store import CLUSTER, ConflictError, StateStore, page_document_name
from tests.harness.manual_clock import ManualClock
from tests.unit.controller.changes import contents, document_of
from tests.unit.controller.fault_disk import CrashError, FaultDisk
from tests.unit.controller.memory_api import MemoryApi
from tests.unit.controller.memory_store import MemoryStore

OPTIONS = ControllerOptions(topics_max=60, groups_max=60)
PAGE_BYTES = 400
FOLDER = Path("/data/controller")

STEPS = st.lists(st.tuples(st.sampled_from("tttgTTGqq"), st.integers(0, 30)), max_size=60)
"""Each makes a topic or group of that number, or deletes it if it is there (a capital letter: more likely); or
gives a topic one queue more."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_controller.cluster.stored_cluster._READ_AGAIN_S", 0)


def hold(store: StateStore, seed: int = 1, *, alone: bool = True, page_bytes: int = PAGE_BYTES) -> StoredCluster:
    return StoredCluster(
        store,
        alone=alone,
        random_source=random.Random(seed),
        clock=ManualClock(),
        metrics=ClusterMetrics(CollectorRegistry()),
        page_bytes=page_bytes,
    )


def stepped(state: ClusterState, step: tuple[str, int]) -> ClusterState:
    kind, number = step
    name = f"name-{number}"
    if kind in "gG":
        if name in state.groups:
            return state.after(state.delete_group(name))
        return state.after(state.create_group(OPTIONS, name)) if kind == "g" else state
    if kind == "q":
        topic = state.topics.get(name)
        update = None if topic is None else alter_topic(state, name, TopicSettings(queues=topic.queues + 1))
        return state if update is None else state.after(update)
    if name in state.topics:
        return state.after(state.delete_topic(name))
    return state.after(state.create_topic(OPTIONS, name, TopicType.NORMAL)) if kind == "t" else state


def with_topics(state: ClusterState, *numbers: int) -> ClusterState:
    for number in numbers:
        state = stepped(state, ("t", number))
    return state


@given(steps=STEPS, together=st.integers(1, 5))
async def test_what_is_saved_is_found_by_whoever_comes_next(steps: list[tuple[str, int]], together: int) -> None:
    store = MemoryStore()
    held = hold(store)
    state = await held.load_or_make("test")
    for first in range(0, len(steps), together):
        for step in steps[first : first + together]:
            state = stepped(state, step)
        await held.save(state)
    found = await hold(store).load_or_make("test")
    assert (found.version, contents(found)) == (state.version, contents(state))
    assert (await held.load(state.named), held.version) == (found, str(len(store.history[CLUSTER])))
    # Every page is named by the head, but for some that are deleted after later changes.
    named = {page["name"] for page in json.loads(store.history[CLUSTER][-1]).get("pages", ())}
    assert named <= set(await store.pages())


@given(steps=STEPS)
def test_neither_head_nor_pages_grow(steps: list[tuple[str, int]]) -> None:
    state, book, made = ClusterState("test", bytes(32)), ClusterBook(), 0

    def new_name() -> str:
        nonlocal made
        made += 1
        return str(made)

    for step in steps:
        before, state = state, stepped(state, step)
        new_topics, gone_topics = state.topics.difference(before.topics)
        new_groups, gone_groups = state.groups.difference(before.groups)
        come: list[Entry] = [*new_topics.values(), *new_groups.values()]
        gone: list[Entry] = [*gone_topics.values(), *gone_groups.values()]
        pages = {page.name for page in book.pages}
        book = book.changed(come, gone, PAGE_BYTES, new_name)
        assert sum(map(bytes_of, book.recent.values())) <= PAGE_BYTES // 4
        assert sum(len(page.deleted) for page in book.pages) * 16 <= PAGE_BYTES // 4
        for page in book.pages:
            assert page.entries
            assert sum(map(bytes_of, page.entries.values())) <= PAGE_BYTES or len(page.entries) == 1
            assert list(page.entries) == sorted(page.entries)
        assert len({page.name for page in book.pages} - pages) <= 3
    entries = [entry for page in book.pages for entry in page.entries.values()] + list(book.recent.values())
    topics = {entry.name: entry for entry in entries if isinstance(entry, Topic)}
    assert (len(entries), topics) == (len(state.topics) + len(state.groups), dict(state.topics))


async def test_a_change_among_many_writes_little() -> None:
    api = MemoryApi()
    store = KubernetesStateStore(api, "test")
    held = hold(store, page_bytes=4096)
    options = ControllerOptions()
    state = await held.load_or_make("test")
    for number in range(1000):
        state = state.after(state.create_topic(options, f"topic-{number:04}", TopicType.NORMAL))
        if number % 50 == 49:
            await held.save(state)
    before = api.revision
    await held.save(state.after(state.delete_topic("topic-0500")))
    assert api.revision == before + 1  # the head alone
    sizes = {key: len(json.dumps(each)) for key, each in api.objects.items()}
    assert held.pages > 15
    assert max(sizes.values()) < 4096
    spec = api.objects["popwheelclusters", "test"]["spec"]
    assert (spec["topics"], spec["groups"]) == (999, 0)
    found = await hold(store).load_or_make("test")
    assert len(found.topics) == 999
    await store.close()


async def test_a_crash_at_any_step_leaves_the_old_state_or_the_new_one() -> None:
    outcomes = set()
    for steps in range(40):
        for names_kept in (False, True):
            disk = FaultDisk()
            held = hold(FileStateStore(FOLDER, disk))
            old = with_topics(await held.load_or_make("test"), *range(8))
            await held.save(old)
            old = stepped(old, ("T", 2))
            await held.save(old)
            new = with_topics(stepped(old, ("T", 1)), *range(10, 16))
            disk.steps_left = steps
            try:
                await held.save(new)
                saved = True
            except CrashError:
                saved = False
            after = FileStateStore(FOLDER, disk.after_power_loss(names_kept=names_kept, bytes_kept=False))
            held = hold(after)
            found = await held.load_or_make("test")
            outcomes.add((saved, found.version - old.version))
            assert contents(found) == contents(new if found.version == new.version else old)
            assert found.version in ((new.version,) if saved else (old.version, new.version))
            for number in range(20, 24):  # what the crash has left is deleted after later changes
                found = with_topics(found, number)
                await held.save(found)
            assert set(await after.pages()) == {page.name for page in held._book.pages}
    assert {saved for saved, _ in outcomes} == {True, False} and len(outcomes) == 3


@pytest.mark.parametrize("seed", range(30))
async def test_two_controllers_lose_nothing_whatever_the_store_does(seed: int) -> None:
    """Each believes that it leads. What was answered is there, what was refused as not done is not."""
    chance = random.Random(seed)
    api = MemoryApi()
    stores = [KubernetesStateStore(api, "test") for _ in range(2)]
    holds = [hold(store, number, alone=False) for number, store in enumerate(stores)]
    keepers = [
        StateWriter(await held.load_or_make("test"), held.save, held.load, lambda update: None, lambda: None, 100)
        for held in holds
    ]
    for state_writer in keepers:
        state_writer.start(state_writer.state)
    sure: dict[str, bool] = {}
    for _ in range(60):
        name, state_writer = f"name-{chance.randrange(12)}", chance.choice(keepers)
        api.stale_reads = int(chance.random() < 0.1)
        api.lost_answers = int(chance.random() < 0.1)
        api.repeated_changes = int(chance.random() < 0.1)
        api.away = chance.random() < 0.02
        there = chance.random() < 0.6
        try:
            if there:
                await state_writer.change(lambda state, name=name: state.create_topic(OPTIONS, name, TopicType.NORMAL))  # type: ignore[misc]
            else:
                await state_writer.change(lambda state, name=name: state.delete_topic(name))  # type: ignore[misc]
            sure[name] = there
        except StatusError as error:
            if "not known" in error.message:
                sure.pop(name, None)
        api.away = False
    api.stale_reads = api.lost_answers = api.repeated_changes = 0
    found = await hold(stores[0], 3).load_or_make("test")
    assert {name: name in found.topics for name in sure} == sure
    for state_writer, store in zip(keepers, stores, strict=True):
        await state_writer.stop()
        await store.close()


async def test_a_page_that_another_may_still_name_is_not_deleted() -> None:
    """One that was written and not named yet is left alone until the head has moved on, which refuses its writer."""
    store = MemoryStore()
    one, two = hold(store, 1, alone=False), hold(store, 2, alone=False)
    begin = with_topics(await one.load_or_make("test"), 1)
    await one.save(begin)
    seen: list[set[str]] = []
    write = store.write

    async def let_the_other_in(name: str, document: object, expected: str | None) -> str:
        """The other controller begins to lead, and changes something, just before the head is written."""
        if name == CLUSTER:
            store.write = write  # type: ignore[method-assign]
            found = await two.load_or_make("test")
            seen.append(set(await store.pages()))
            await two.save(with_topics(found, 20))
            seen.append(set(await store.pages()))
        return await write(name, document, expected)  # type: ignore[arg-type]

    store.write = let_the_other_in  # type: ignore[method-assign]
    with pytest.raises(ConflictError):
        await one.save(with_topics(begin, *range(2, 9)))
    assert seen[0] and not seen[0] & seen[1]
    found = await hold(store, 3).load_or_make("test")
    assert set(found.topics) == {"name-1", "name-20"}


async def test_a_page_that_is_gone_is_said() -> None:
    store = MemoryStore()
    held = hold(store)
    await held.save(with_topics(await held.load_or_make("test"), *range(9)))
    (first, *_) = await store.pages()
    del store.history[page_document_name(first)]
    another = hold(store)
    with pytest.raises(CorruptDataError, match=f"memory:page-{first} is gone, which memory:cluster names"):
        await another.load_or_make("test")


async def test_a_cluster_of_an_older_release_is_read_and_parted_at_its_next_change() -> None:
    store = MemoryStore()
    old = with_topics(ClusterState("test", bytes(32)), *range(30))
    await store.write(CLUSTER, document_of(old), None)
    held = hold(store)
    found = await held.load_or_make("test")
    assert (found, held.pages) == (old, 0)
    await held.save(stepped(found, ("T", 3)))
    assert held.pages > 3
    assert json.loads(store.history[CLUSTER][-1])["format"] == 2
    again = await hold(store).load_or_make("test")
    assert set(again.topics) == set(old.topics) - {"name-3"}


async def test_a_small_cluster_is_stored_as_older_releases_know_it() -> None:
    store = MemoryStore()
    held = hold(store, page_bytes=65_536)
    state = with_topics(await held.load_or_make("test"), *range(9))
    await held.save(state)
    assert json.loads(store.history[CLUSTER][-1]) == document_of(state)
    assert "format" not in document_of(state)


def test_a_head_of_a_later_release_is_refused() -> None:
    with pytest.raises(UnknownFormatError, match="the store is of format 3, this release knows none after 2"):
        cluster_of({**document_of(ClusterState("test", bytes(32))), "format": 3}, "the store")


async def test_what_is_read_again_shares_with_what_was_known() -> None:
    """So comparing the two costs what is different, and not all names."""
    store = MemoryStore()
    held = hold(store)
    state = with_topics(await held.load_or_make("test"), *range(20))
    await held.save(state)
    await hold_of_another(store)
    found = await held.load(state.named)
    assert set(found.topics) - set(state.topics) == {"name-40"}
    again = await held.load(found.named)
    assert again.topics is found.topics
    assert replace(again, brokers={"b": BrokerInfo(name="b")}).groups is found.groups


async def hold_of_another(store: MemoryStore) -> None:
    """Another controller makes a topic."""
    held = hold(store, 9)
    with contextlib.suppress(StatusError):
        await held.save(with_topics(await held.load_or_make("test"), 40))
