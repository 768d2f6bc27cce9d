"""What the broker's core does about a full disk, about what retention deletes, and at its limits."""

from collections.abc import Callable

import pytest

from popwheel_broker.consume.delivery import OffsetCommit
from popwheel_broker.options import BrokerOptions, LogOptions
from popwheel_broker.replication.log_cleaner import LogCleaner
from popwheel_broker.replication.superblock import Superblock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from tests.unit.broker.core_world import metrics, world_of, world_of_segments
from tests.unit.broker.world import FOLDER, World, handles, run_now


def test_a_segment_that_an_open_delivery_needs_stays_unless_that_is_moved() -> None:
    world = world_of()
    world.put("t", b"held")
    world.pop("g", "t", invisible_ms=100 * 3_600_000)
    for _ in range(60):
        world.put("t", bytes(100))
    world.clock.advance(73 * 3_600_000)
    world.put("t", b"young")
    assert world.core.expiry.expired_before() == 0
    world.clock.advance(27 * 3_600_000)
    assert world.revive() == 1
    world.flush()
    assert world.retain() > 0
    assert b"held" in world.bodies(world.pop("g", "t", max_messages=100) + world.pop("g", "t", max_messages=100))


def test_retention_goes_by_disk_share_too() -> None:
    world = world_of()
    for _ in range(60):
        world.put("t", bytes(100))
    assert world.retain() == 0
    world.disk.fill(world.disk.used_bytes // 10)
    before = world.core.store.log.segment_count
    assert world.retain() > 0
    assert world.core.store.log.segment_count < before


def test_acks_and_pops_go_on_when_puts_do_not_fit() -> None:
    world = world_of()
    world.put("t", b"1")
    world.disk.fill(400)
    with pytest.raises(StatusError, match="takes no messages"):
        world.put("t", bytes(500))
    assert world.ack("g", "t", *handles(world.pop("g", "t"))) == [Code.OK]


@pytest.mark.parametrize("call", ["pop", "ack", "change", "renew", "release", "dead"])
def test_a_call_that_the_full_disk_refuses_changes_nothing(call: str) -> None:
    world = world_of()
    world.put("t", b"1")
    world.put("t", b"2")
    (handle,) = handles(world.pop("g", "t", 1))
    acks = world.core.acks
    before = world.deliveries()
    world.disk.fill(1)
    calls: dict[str, Callable[[], object]] = {
        "pop": lambda: world.pop("g", "t"),
        "ack": lambda: acks.ack("g", "t", [handle]),
        "change": lambda: acks.change_invisible("g", "t", handle, 5),
        "renew": lambda: acks.renew([pb.RenewEntry(group="g", topic="t", receipt_handle=handle)], 5),
        "release": lambda: acks.release("g", "t", [handle], False),
        "dead": lambda: acks.dead_letter("g", "t", handle),
    }
    with pytest.raises(StatusError) as caught:
        calls[call]()
    assert caught.value.code == Code.INTERNAL_ERROR
    assert world.deliveries() == before
    world.disk.fill(1 << 20)
    assert world.bodies(world.pop("g", "t")) == [b"2"]
    assert world.ack("g", "t", handle) == [Code.OK]


def test_no_more_messages_are_out_than_allowed() -> None:
    world = world_of(open_messages_max=5)
    for _ in range(5):
        world.put("t", b"1")
    messages = world.pop("g", "t", 5)
    assert len(messages) == 3, "its share"
    with pytest.raises(StatusError, match=r"3 messages .* the group g .*broker\.pop\.open_messages_max") as caught:
        world.pop("g", "t")
    assert caught.value.code == Code.TOO_MANY_REQUESTS
    assert "popwheel_pop_open_messages 3.0" in metrics(world)
    assert "popwheel_pop_open_messages_largest_share 3.0" in metrics(world)
    world.ack("g", "t", handles(messages)[0])
    assert len(world.pop("g", "t", 1)) == 1


def test_no_more_progress_is_kept_than_allowed() -> None:
    """Who polls ever new queues, or as ever new groups, finds out; who has read goes on, and so do redeliveries."""
    world = world_of(progress_max=20)
    world.add_topic("wide", 30)
    world.add_group("new")
    for number in range(30):
        world.put("wide", b"%d" % number, queue_id=number)
    world.put("t", b"x")
    given = world.pop("g", "t", 1)
    for number in range(20):  # each takes half of what is left, or what is left of nine tenths
        world.add_group(f"h{number}")
        with pytest.raises(StatusError, match=r"pairs of a group and a queue.*broker\.pop\.progress_max") as caught:
            while True:
                world.pop(f"h{number}", "wide", 1)
        assert caught.value.code == Code.TOO_MANY_REQUESTS
    assert world.core.state.merge_buffer.pairs_of("h0") == 10
    assert 18 <= world.core.state.merge_buffer.pairs < 20
    with pytest.raises(StatusError, match=r"broker\.pop\.progress_max"):
        world.pop("new", "t")
    commit = OffsetCommit("new", "t", 0, 1)
    with pytest.raises(StatusError, match=r"broker\.pop\.progress_max"):
        world.core.commit_offset(commit)
    assert f"popwheel_pop_progress {world.core.state.merge_buffer.pairs}.0" in metrics(world)
    world.put("t", b"y")
    assert world.bodies(world.pop("g", "t", 1)) == [b"y"]
    world.core.acks.release("g", "t", handles(given), True)
    world.flush()
    assert world.bodies(world.pop("g", "t", 1)) == [b"x"], "what failed comes again"
    world.delete_topic("wide")
    assert world.bodies(world.pop("new", "t", 2)) == [b"x", b"y"]


def test_a_poll_that_finds_nothing_leaves_nothing() -> None:
    world = world_of()
    world.add_topic("empty", 4)
    for queue_id in range(4):
        world.put("empty", b"1", queue_id=queue_id)
        world.pop("g", "empty", 1)
    pairs = world.core.state.merge_buffer.pairs
    world.add_group("late")
    world.put("t", b"1")
    world.delete_topic("empty")
    for _ in range(3):
        assert world.pop("late", "empty") == []
    assert world.core.state.merge_buffer.pairs == pairs - 4 == 0
    assert world.bodies(world.pop("late", "t", 1)) == [b"1"], "a new group begins at the first message held"


def test_a_group_that_hoards_leaves_room_for_others_also_after_a_crash() -> None:
    world = world_of(open_messages_max=8)
    world.add_group("other")
    for number in range(9):
        world.put("t", b"%d" % number)
    while True:
        try:
            world.pop("g", "t", 1)
        except StatusError as error:
            assert error.code == Code.TOO_MANY_REQUESTS
            break
    world.crash("process")
    with pytest.raises(StatusError, match=r"4 messages are given out to the group g"):
        world.pop("g", "t")
    first = world.pop("other", "t", 9)
    assert world.bodies(first) == [b"0", b"1"]
    assert world.ack("other", "t", *handles(first)) == [Code.OK, Code.OK]
    assert world.bodies(world.pop("other", "t", 9)) == [b"2", b"3"]


def test_no_more_queues_than_allowed() -> None:
    options = BrokerOptions(log=LogOptions(queues_max=9))
    world = World(0, options)
    world.add_topic("t", 2)
    world.add_group("g")
    world.put("t", b"1")
    world.pop("g", "t")
    for queue_id in range(1, 20):
        try:
            world.put("t", b"1", queue_id=queue_id)
        except StatusError as error:
            assert error.code == Code.TOO_MANY_REQUESTS
            break
    else:
        raise AssertionError("there are more queues than allowed")
    assert "popwheel_storage_queues 9.0" in metrics(world)


def test_a_deletion_that_finds_the_disk_full_is_made_up_for() -> None:
    world = world_of()
    world.put("t", b"1")
    world.disk.fill(0)
    with pytest.raises(StatusError, match="disk is nearly full"):
        world.delete_topic("t")
    world.disk.fill(1 << 30)
    world.core.cluster_changes.apply()
    world.add_topic("t")
    assert world.bodies(world.pop("g", "t")) == []
    world.crash("process")
    assert world.bodies(world.pop("g", "t")) == []


def test_a_checkpoint_older_than_the_last_deletion_leads_to_nothing_that_is_gone() -> None:
    world = world_of_segments(8)
    world.clock.advance(80 * 3_600_000)
    world.put("t", b"new")
    while world.core.store.delete_before(world.core.expiry.expired_before()):
        world.flush()
    assert world.core.store.log.start_position > 0
    held = world.held("t", 0)
    world.crash("process")
    assert world.held("t", 0) == held
    assert len(held) < 9


def test_damage_makes_no_segment_look_old() -> None:
    """The store time of a damaged record was taken for one long ago."""
    world = world_of_segments(12)
    log = world.core.store.log
    (second, _), (third, _) = log.segments()[1:3]
    world.disk.flip_bit(FOLDER / "commitlog" / f"{second:020}.log", 26 * 8)
    assert world.core.expiry.expired_before() == 0
    assert log.damaged == {second}
    world.clock.advance(80 * 3_600_000)
    world.put("t", b"new")
    assert world.core.expiry.expired_before() >= third


def test_what_a_core_has_still_to_read_is_not_deleted() -> None:
    """A master that was deposed reads its log anew; it has let go before of what its checkpoint covers."""
    world = world_of_segments(12)
    log, behind = world.core.store.log, world.core.store.log.segments()[1][0]

    class Anew:
        is_loaded = False
        store = world.core.store

        @property
        def expiry(self) -> "Anew":
            return self

        def expired_before(self) -> int:
            return behind

    class Saved:
        needed_from = log.end_position

    superblock = Superblock(world.disk, FOLDER)
    cleaner = LogCleaner(Anew, log, superblock, Saved())  # type: ignore[arg-type]
    assert run_now(cleaner.delete_expired()) == 0
    Anew.is_loaded = True
    assert [run_now(cleaner.delete_expired()) for _ in range(2)] == [1, 0]
    assert log.start_position == superblock.contents.log_start == behind


@pytest.mark.parametrize("is_saved", [False, True])
def test_what_is_there_is_taken_up_though_fewer_queues_are_allowed_now(is_saved: bool) -> None:
    world = World()
    world.add_group("g")
    for topic in ("a", "b", "c"):
        world.add_topic(topic)
        world.put(topic, topic.encode())
        assert world.pop("g", topic)
    world.core.commit_offset(OffsetCommit("g", "c", 0, 0))
    if is_saved:
        world.save()
    world.options = world.options.model_copy(update={"log": LogOptions(segment_bytes=4096, queues_max=1)})
    world.crash("process")
    assert [len(world.held(topic)) for topic in ("a", "b", "c")] == [1, 1, 1]
    with pytest.raises(StatusError, match="queues_max"):
        world.put("d", b"d")
