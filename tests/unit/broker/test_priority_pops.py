"""Topics whose queues are levels: the highest comes first, and what has waited for too long gets its share (P8)."""

import random
from unittest.mock import Mock

import pytest

from popwheel_broker.consume import priority_pops
from popwheel_broker.consume.delivery import OffsetCommit
from popwheel_broker.options import BrokerOptions, LogOptions, PopOptions
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import TopicType
from tests.unit.broker.world import FOLDER, INVISIBLE_MS, World, attempts, handles

WAIT_MS = 60_000
LEVELS = 3
LOG = LogOptions(segment_bytes=1 << 20, index_entries_max=16, queue_entries_in_memory=4)


def world_with(*, fifo: bool = False, max_attempts: int = 3, **pop: int) -> World:
    options = BrokerOptions(log=LOG, pop=PopOptions(priority_wait_ms=WAIT_MS, **pop))
    world = World(0, options)
    world.add_topic("t", LEVELS, TopicType.PRIORITY)
    world.add_group("g", max_attempts, fifo=fifo)
    return world


def put(world: World, *names: str, tag: str = "") -> None:
    """Store messages such as `2a`: the number is the priority."""
    for name in names:
        world.put("t", name.encode(), tag, min(int(name[0]), LEVELS - 1), priority=int(name[0]))


def pop(world: World, count: int = 32, attempt_id: str = "", tags: str = "*") -> list[str]:
    return [each.body.decode() for each in messages(world, count, attempt_id, tags)]


def messages(world: World, count: int = 32, attempt_id: str = "", tags: str = "*", queue_id: int = -1) -> list[Message]:
    answer = world.answer("g", "t", count, tags, queue_id, attempt_id=attempt_id)
    return [Message.FromString(each) for each in answer.messages]


def lapse(world: World) -> None:
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()


def test_the_highest_level_comes_first_and_each_in_its_order() -> None:
    world = world_with()
    put(world, "0a", "1a", "2a", "0b", "2b", "1b", "9c")
    first = messages(world, 4)
    assert [each.body for each in first] == [b"2a", b"2b", b"9c", b"1a"]
    assert [each.system_properties.priority for each in first] == [2, 2, 9, 1]
    put(world, "2d")
    assert pop(world) == ["2d", "1b", "0a", "0b"]


@pytest.mark.parametrize("queue_id", [-1, 0, 2])
def test_it_does_not_matter_which_queue_is_named(queue_id: int) -> None:
    world = world_with()
    put(world, "0a", "2a", "1a")
    assert [each.body for each in messages(world, 2, queue_id=queue_id)] == [b"2a", b"1a"]


def test_what_comes_again_keeps_its_level() -> None:
    world = world_with()
    put(world, "0a", "1a", "2a")
    assert pop(world, 2) == ["2a", "1a"]
    lapse(world)
    assert [len(world.held("%RETRY%g+t", level)) for level in range(LEVELS)] == [0, 1, 1]
    put(world, "1b", "0b")
    assert sorted(pop(world, 2)) in (["1a", "2a"], ["1b", "2a"])
    assert sorted(pop(world, 1)) in (["1b"], ["1a"])
    assert pop(world) == ["0a", "0b"]


def test_it_dies_at_the_limit_and_is_released_to_its_level() -> None:
    world = world_with(max_attempts=2)
    put(world, "0a", "7a")
    for attempt in (1, 2):
        (message,) = messages(world, 1)
        assert (message.body, attempts([message])) == (b"7a", [attempt])
        lapse(world)
    ((_, dead),) = world.held("%DLQ%g")
    assert Message.FromString(dead.payload).body == b"7a"
    assert world.core.dead_letters.redrive("g", 10, 10, 1 << 20).redriven == 1
    world.flush()
    assert [len(world.held("%RETRY%g+t", level)) for level in range(LEVELS)] == [0, 0, 2]
    assert pop(world, 1) == ["7a"]


def test_a_group_is_set_back_in_all_levels_of_its_retries() -> None:
    world = world_with()
    put(world, "0a", "1a", "2a")
    assert len(pop(world)) == 3
    lapse(world)
    reset = world.core.offset_reset
    queues = {queue: queue.max_offset for queue in world.core.store.queues.of_topic("t")}
    plan = reset.plan("g", "t", queues)
    assert len(plan.retries) == LEVELS
    reset.begin(plan)
    reset.end(plan)
    world.flush()
    assert pop(world) == []
    assert world.core.pops.waiting("g", "t", None) == 0


def test_an_ordered_group_reads_from_the_highest_level_and_the_same_try_gets_the_same() -> None:
    world = world_with(fifo=True)
    put(world, "0a", "2a", "1a", "2b")
    first = messages(world, 3, attempt_id="try")
    assert [each.body for each in first] == [b"2a", b"2b", b"1a"]
    again = messages(world, 3, attempt_id="try")
    assert handles(again) == handles(first)
    assert pop(world, 3, attempt_id="another") == ["0a"]
    assert world.ack("g", "t", *handles(again)) == [Code.OK] * 3
    lapse(world)
    assert pop(world) == ["0a"]
    assert not world.core.state.table.message_group_queues.has("g", "t")


def test_single_pops_take_turns_while_something_is_overdue() -> None:
    world = world_with()
    put(world, *(f"0{letter}" for letter in "abc"))
    world.clock.advance(WAIT_MS)
    put(world, *(f"2{letter}" for letter in "abcdef"))
    assert [pop(world, 1) for _ in range(2)] == [["2a"], ["2b"]]  # they have waited for long, not for too long
    world.clock.advance(1)
    assert [pop(world, 1)[0] for _ in range(7)] == ["2c", "0a", "2d", "0b", "2e", "0c", "2f"]
    assert world.core.pops.priorities.overdue == 3


def test_what_is_overdue_comes_first_and_takes_half_of_a_pop() -> None:
    world = world_with()
    put(world, *(f"1{letter}" for letter in "abcdef"))
    put(world, *(f"0{letter}" for letter in "abcdef"))
    world.clock.advance(WAIT_MS + 1)
    put(world, *(f"2{letter}" for letter in "abcdef"))
    assert pop(world, 4) == ["1a", "1b", "2a", "2b"]
    assert pop(world, 5) == ["1c", "1d", "2c", "2d", "2e"]
    # The rest of a pop goes down the levels as always, behind what was taken of them already.
    assert pop(world, 8) == ["1e", "1f", "0a", "0b", "2f", "0c", "0d", "0e"]
    assert pop(world) == ["0f"]


def test_only_what_has_waited_for_too_long_comes_before_its_time() -> None:
    world = world_with()
    put(world, "0a")
    world.clock.advance(WAIT_MS + 1)
    put(world, "0b", "0c", "2a", "2b", "2c", "2d")
    assert pop(world, 4) == ["0a", "2a", "2b", "2c"]
    assert pop(world, 4) == ["2d", "0b", "0c"]


def test_the_oldest_of_several_levels_comes_first() -> None:
    world = world_with()
    put(world, "0a")
    world.clock.advance(10)
    put(world, "1a")
    world.clock.advance(WAIT_MS)
    put(world, "2a", "2b", "2c")
    assert pop(world, 2) == ["0a", "2a"]
    world.clock.advance(10)
    assert pop(world, 2) == ["1a", "2b"]


def test_what_comes_again_is_overdue_from_when_it_came() -> None:
    world = world_with()
    put(world, "1a")
    assert pop(world) == ["1a"]
    world.clock.advance(10 * WAIT_MS)
    lapse(world)
    put(world, "2a", "2b", "2c")
    assert pop(world, 2) == ["2a", "2b"]
    world.clock.advance(WAIT_MS + 1)
    assert pop(world, 2) == ["1a", "2c"]


def test_nothing_lower_comes_in_the_place_of_what_does_not_fit() -> None:
    world = world_with(response_bytes_max=1024)
    for name in ("2a", "2b", "2c", "1a"):
        world.put("t", name.encode() + b"." * 300, queue_id=int(name[0]), priority=int(name[0]))
    seen = []
    while found := pop(world, 32):
        seen.append([each[:2] for each in found])
    assert [name for each in seen for name in each] == ["2a", "2b", "2c", "1a"]
    assert len(seen) > 1


def test_a_filter_chooses_among_the_levels() -> None:
    world = world_with()
    put(world, "0a", "0b", tag="red")
    put(world, "0c", tag="blue")
    world.clock.advance(WAIT_MS + 1)
    put(world, "0d", tag="blue")
    put(world, "2a", "2b", tag="red")
    put(world, "2c", "2d", "2e", "2f", tag="blue")
    assert pop(world, 4, tags="blue") == ["0c", "2c", "2d", "2e"]
    assert pop(world, 4, tags="blue") == ["2f", "0d"]


def test_a_filter_passes_over_what_is_overdue_and_not_wanted() -> None:
    world = world_with()
    put(world, "0a", tag="red")
    world.clock.advance(WAIT_MS + 1)
    put(world, "0b", "2a", "2b", "2c", tag="blue")
    assert pop(world, 2, tags="blue") == ["2a", "2b"]
    assert pop(world, 2, tags="blue") == ["2c", "0b"]


def test_a_filter_finds_nothing_more_behind_what_is_overdue() -> None:
    world = world_with()
    put(world, "0a", tag="blue")
    put(world, "0b", "0c", tag="red")
    world.clock.advance(WAIT_MS + 1)
    put(world, "1a", "2a", tag="blue")
    assert pop(world, 8, tags="blue") == ["0a", "2a", "1a"]
    assert pop(world, 8, tags="blue") == []
    assert world.core.pops.waiting("g", "t", None) == 0
    world.crash("process")
    assert pop(world, 8, tags="blue") == []


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_asked_for_each_comes_once_and_in_its_order(seed: int) -> None:
    chance = random.Random(seed)
    world = world_with(response_bytes_max=chance.choice((1024, 1 << 20)), scan_entries_max=chance.choice((16, 4096)))
    sent: list[str] = []
    got: list[str] = []
    tags = chance.choice(("*", "red", "red || blue"))
    empty = 0
    while len(sent) < 60 or empty < 12:
        if len(sent) < 60:
            for _ in range(chance.randint(0, 6)):
                tag = chance.choice(("red", "blue", "green"))
                name = f"{chance.randint(0, 3)}{len(sent)}"
                put(world, name, tag=tag)
                sent.append(f"{name} {tag}")
        world.clock.advance(chance.choice((0, 1000, WAIT_MS // 2, WAIT_MS + 1)))
        found = pop(world, chance.choice((1, 2, 3, 32)), tags=tags)
        empty = 0 if found else empty + 1
        got += found
    wanted = [each.split()[0] for each in sent if tags == "*" or each.split()[1] in tags]
    assert sorted(got) == sorted(wanted)
    for level in range(LEVELS):
        of_level = [each for each in wanted if min(int(each[0]), LEVELS - 1) == level]
        assert [each for each in got if each in of_level] == of_level


def test_a_damaged_level_stands_still_and_the_others_go_on() -> None:
    world = world_with()
    put(world, "2a", "1a", "0a")
    ((_, stored),) = world.held("t", 2)
    path = FOLDER / "commitlog" / "00000000000000000000.log"
    assert world.disk.exists(path)
    world.disk.flip_bit(path, 8 * (stored.position + stored.length - 1))
    assert pop(world) == ["1a", "0a"]
    assert [queue.queue_id for queue in world.core.pops.damaged] == [2]


def test_a_broker_that_has_not_learned_of_the_topic_takes_the_proxys_word() -> None:
    world = World(0, BrokerOptions(log=LOG))
    world.add_group("g")
    put(world, "0a", "2a", "1a")
    request = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=2, invisible_ms=1000, levels=LEVELS)
    found = world.core.pops.pop(request, 0).messages
    assert [Message.FromString(each).body for each in found] == [b"2a", b"1a"]


def test_levels_outlast_a_crash() -> None:
    world = world_with()
    put(world, "0a", "2a", "1a", "2b")
    assert pop(world, 2) == ["2a", "2b"]
    world.flush()
    world.crash("power")
    lapse(world)
    assert sorted(pop(world, 2)) == ["2a", "2b"]
    assert pop(world) == ["1a", "0a"]


def test_queues_that_are_no_levels_any_more_give_all_that_comes_again() -> None:
    """The controllers have lost their state, and the topic was made anew as an ordinary one."""
    world = world_with()
    put(world, "0a", "2a", "1a")
    assert len(pop(world)) == 3
    lapse(world)
    world.view.topics["t"].type = TopicType.MIXED
    assert sorted(pop(world)) == ["0a", "1a", "2a"]


def test_what_is_kept_in_mind_has_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_pops, "HEADS_MAX", 2)
    monkeypatch.setattr(priority_pops, "ROTATIONS_MAX", 1)
    world = world_with()
    for group in ("g", "h", "i"):
        world.add_group(group)
    put(world, "0a", "0b", "1a")
    world.clock.advance(WAIT_MS + 1)
    put(world, "2a", "2b", "2c")
    for group in ("g", "h", "i"):
        found = [world.bodies(world.pop(group, "t", 1))[0].decode() for _ in range(3)]
        assert found == ["2a", "1a", "2b"]
        assert world.core.pops.priorities.heads <= 2
        assert world.core.pops.priorities.rotations <= 1


def test_the_head_of_a_level_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with()
    put(world, "0a", "1a", *(f"2{letter}" for letter in "abcdef"))
    look = Mock(wraps=world.core.store.records.stored_at_ms)
    monkeypatch.setattr(world.core.store.records, "stored_at_ms", look)
    for _ in range(5):
        assert len(pop(world, 1)) == 1
    assert look.call_count == 2
    queue = world.core.store.queue("t", 0)
    assert queue is not None
    world.core.commit_offset(OffsetCommit("g", "t", 0, 1))
    assert pop(world) == ["2f", "1a"]
