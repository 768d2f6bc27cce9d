"""What users of such systems met, as examples with the broker's core, and its limits (DESIGN 7)."""

import random

import pytest

from popwheel_broker.consume.delivery import OffsetCommit
from popwheel_broker.log.consume_queue import Entry
from popwheel_broker.options import BrokerOptions, LogOptions
from popwheel_common.contract import names
from popwheel_common.errors import CorruptDataError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.pb.popwheel.v1.controller_pb2 import ExponentialBackoff
from tests.unit.broker.core_world import metrics, world_of
from tests.unit.broker.index_bytes import index_files, replace_entry
from tests.unit.broker.world import INVISIBLE_MS, World, attempts, handles, run_now


def test_a_message_comes_again_with_its_attempts_and_ends_as_a_dead_letter() -> None:
    world = world_of()
    world.put("t", b"1")
    for attempt in (1, 2, 3):
        messages = world.pop("g", "t")
        assert (world.bodies(messages), attempts(messages)) == ([b"1"], [attempt])
        world.clock.advance(INVISIBLE_MS - 1)
        assert world.revive() == 0
        world.clock.advance(1)
        assert world.revive() == 1
        world.flush()
    assert world.pop("g", "t") == []
    (dead,) = world.pop("g", names.dead_letter_topic("g"))
    assert (dead.body, dead.system_properties.delivery_attempt) == (b"1", 1)
    assert dead.system_properties.dead_letter_queue.topic == "t"


def test_a_new_group_begins_with_the_first_message_that_is_stored() -> None:
    world = world_of()
    world.put("t", b"1")
    world.add_group("late")
    assert world.bodies(world.pop("late", "t")) == [b"1"]


def test_one_queue_can_be_asked_for() -> None:
    world = world_of(queues=3)
    for queue_id in range(3):
        world.put("t", b"%d" % queue_id, queue_id=queue_id)
    assert world.bodies(world.pop("g", "t", queue_id=1)) == [b"1"]
    assert sorted(world.bodies(world.pop("g", "t"))) == [b"0", b"2"]


def test_pops_do_not_all_begin_with_the_same_queue() -> None:
    world = world_of(queues=4)
    for number in range(40):
        world.put("t", b"%d" % (number % 4), queue_id=number % 4)
    assert {world.pop("g", "t", max_messages=1)[0].body for _ in range(20)} == {b"0", b"1", b"2", b"3"}


def test_the_retry_topic_comes_first_one_time_in_five() -> None:
    world = world_of()
    for number in range(300):
        world.put("t", b"%d" % number)
    for _ in range(8):
        world.core.acks.release("g", "t", handles(world.pop("g", "t", 25)), True)
        world.flush()
    found = [world.pop("g", "t", 1)[0].system_properties.delivery_attempt for _ in range(100)]
    assert 10 <= sum(attempt > 1 for attempt in found) <= 35


@pytest.mark.parametrize("after", ["retention", "deleted", "deleted and made again"])
def test_a_message_that_is_gone_is_not_replaced_by_another(after: str) -> None:
    """P4: revive gives the very message or nothing, and always advances."""
    world = world_of()
    world.put("t", b"gone")
    (handle,) = handles(world.pop("g", "t"))
    if after == "retention":
        world.core.store.index.forget_before(world.core.store.log.end_position)
    else:
        world.delete_topic("t")
        if after == "deleted and made again":
            world.add_topic("t")
    world.put("t", b"next")
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 1
    world.flush()
    assert world.revive() == 0
    assert len(world.core.state.table) == 0
    assert world.held(names.retry_topic("g", "t")) == []
    assert world.bodies(world.pop("g", "t")) == [b"next"]
    assert world.ack("g", "t", handle) == [Code.INVALID_RECEIPT_HANDLE]


def test_the_messages_of_a_deleted_group_lapse() -> None:
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t")
    world.delete_group("g")
    assert len(world.core.state.table) == 0
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 0


def test_an_ack_that_is_stored_after_its_delivery_left_the_buffer_counts() -> None:
    """A slow consumer: the CK has left the buffer, the committed offset has moved on, and then comes the ack."""
    world = world_of(stay_ms=1000)
    world.put("t", b"1")
    (handle,) = handles(world.pop("g", "t"))
    world.clock.advance(1000)
    world.core.state.merge_buffer.evict(world.clock.steady_ms())
    world.flush()
    assert len(world.core.state.merge_buffer) == 0
    world.save()
    assert world.ack("g", "t", handle) == [Code.OK]
    world.crash("process")
    world.clock.advance(INVISIBLE_MS)
    assert world.revive() == 0
    assert world.pop("g", "t") == []


def test_an_ack_that_was_answered_survives_the_end_of_the_process() -> None:
    world = world_of()
    world.put("t", b"1")
    world.save()
    (handle,) = handles(world.pop("g", "t"))
    assert world.ack("g", "t", handle) == [Code.OK]
    for _ in range(3):
        world.crash("process")
        world.clock.advance(INVISIBLE_MS)
        assert (world.revive(), world.pop("g", "t")) == (0, [])


def test_a_redelivery_whose_second_half_was_lost_happened_all_the_same() -> None:
    """Torn between the message in the retry topic and the ACK of its CK: the message itself says what it replaces.

    Also when a checkpoint was saved since, and the revive queue is read from an older CK that is still open.
    """
    world = world_of()
    for number in range(17):
        world.put("t", b"%d" % number)
    table = world.core.state.table
    for _ in range(9):
        world.pop("g", "t", 1)
    pops = sorted(table, key=lambda each: each.id)
    second = pops[8]
    assert pops[0].revive_queue == second.revive_queue
    world.flush()
    end = world.core.store.log.end_position
    world.core.acks.redeliver([(second, 0)], attempted=True)
    torn = world.core.store._uncommitted[0][0]
    path = max(path for path in world.disk.files() if path.suffix == ".log")
    assert int(path.stem) <= end < torn
    world.disk.crash("process")
    world.disk.open(path).truncate(torn - int(path.stem))
    world.start()
    assert world.core.state.table.get(second.id) is None
    world.save()
    world.crash("process")
    assert world.core.state.table.get(second.id) is None, "it was opened again and would be redelivered once more"


def test_the_committed_offset_is_not_lower_after_a_restart() -> None:
    """C4: the ACK came after the checkpoint, the CK before it."""
    world = world_of()
    for _ in range(3):
        world.put("t", b"1")
    messages = world.pop("g", "t")
    world.flush()
    world.save()
    assert set(world.ack("g", "t", *handles(messages))) == {Code.OK}
    progress = world.core.state.merge_buffer.get("g", world.core.store.queues["t", 0])
    assert progress is not None
    before = progress.committed
    assert before == 3
    world.crash("process")
    progress = world.core.state.merge_buffer.get("g", world.core.store.queues["t", 0])
    assert progress is not None
    assert progress.committed >= before


def test_an_offset_set_by_hand_survives_and_may_go_back() -> None:
    world = world_of()
    for _ in range(5):
        world.put("t", b"1")
    for offset in (4, 2):
        world.core.commit_offset(OffsetCommit("reader", "t", 0, offset))
        for _ in range(2):
            world.crash("process")
            progress = world.core.state.merge_buffer.get("reader", world.core.store.queues["t", 0])
            assert progress is not None
            assert progress.committed == offset


def test_a_change_of_time_that_is_asked_for_again_gives_the_same_handle() -> None:
    world = world_of()
    world.put("t", b"1")
    world.put("t", b"2")
    first, second = handles(world.pop("g", "t"))
    acks = world.core.acks
    new = acks.change_invisible("g", "t", first, 1000)
    world.crash("process")
    acks = world.core.acks
    assert acks.change_invisible("g", "t", first, 1000, is_retry=True) == new
    with pytest.raises(StatusError, match="not valid any more"):
        acks.change_invisible("g", "t", first, 1000)
    assert acks.change_invisible("g", "t", second, 1000, is_retry=True) not in (new, second), "it was not done before"
    assert world.ack("g", "t", new) == [Code.OK]
    with pytest.raises(StatusError, match="not valid any more"):
        acks.change_invisible("g", "t", first, 1000, is_retry=True)


def test_a_group_backs_off_by_its_policy_and_counts_attempts() -> None:
    """A consumer that names no time, and a message that was renewed for as long as it may be."""
    world = world_of(max_attempts=9)
    world.view.groups["g"].exponential_backoff.CopyFrom(ExponentialBackoff(initial_ms=100, max_ms=250, multiplier=2))
    world.put("t", b"1")
    for wait_ms in (100, 200, 250):
        (handle,) = handles(world.pop("g", "t"))
        changed = world.core.acks.change_invisible("g", "t", handle, None)
        assert world.core.state.table.next_due_ms() == world.core.pop_clock.now_ms() + wait_ms
        entries = [pb.RenewEntry(group="g", topic="t", receipt_handle=changed, back_off=on) for on in (False, True)]
        assert [each.code for each in world.core.acks.renew(entries[:1], 5_000)] == [Code.OK]
        assert [each.code for each in world.core.acks.renew(entries[1:], 5_000)] == [Code.OK]
        world.crash("process")
        world.clock.advance(wait_ms - 1)
        assert world.revive() == 0
        world.clock.advance(1)
        assert world.revive() == 1
        world.flush()


def test_what_is_acknowledged_again_of_unknown_outcome_is_well_only_if_it_was_acknowledged() -> None:
    world = world_of()
    for number in range(6):
        world.put("t", b"%d" % number)
    acked, dead, changed, released, held, expired = handles(world.pop("g", "t"))
    world.core.acks.ack("g", "t", [acked])
    world.core.acks.dead_letter("g", "t", dead)
    world.core.acks.change_invisible("g", "t", changed, 1000)
    world.core.acks.release("g", "t", [released], False)

    def codes(*shown: str, is_retry: bool = True) -> list[int]:
        results = world.core.acks.ack("g", "t", shown, is_retry=is_retry)
        return [result.code for result in results] or [Code.OK] * len(shown)

    void = Code.INVALID_RECEIPT_HANDLE
    for crashed in (False, True):
        if crashed:
            world.crash("process")
        assert codes(acked, dead, changed, released) == [Code.OK, Code.OK, void, void], crashed
        assert codes(acked, dead, is_retry=False) == [void, void]
    world.core.acks.dead_letter("g", "t", dead, is_retry=True)
    with pytest.raises(StatusError, match="not valid any more"):
        world.core.acks.dead_letter("g", "t", changed, is_retry=True)
    assert codes(held, acked) == [Code.OK, Code.OK]
    assert codes(acked[:-1] + ("A" if acked[-1] != "A" else "B")) == [void], "forged"
    world.clock.advance(10_000_000)
    world.revive()
    assert codes(expired) == [void]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_expired_for_the_last_time_was_acknowledged_by_no_try(restarts: bool) -> None:
    """A try after a failover was answered OK, as the dead letter was taken for what an earlier try had asked for."""
    world = world_of(max_attempts=1)
    world.put("t", b"1")
    (handle,) = handles(world.pop("g", "t"))
    world.clock.advance(INVISIBLE_MS)
    world.revive()
    world.flush()
    assert world.bodies(world.pop("g", names.dead_letter_topic("g"))) == [b"1"]
    if restarts:
        world.crash("process")
    (result,) = world.core.acks.ack("g", "t", [handle], call=7, is_retry=True)
    assert result.code == Code.INVALID_RECEIPT_HANDLE


def test_all_messages_of_many_change_their_time_at_once() -> None:
    """Revive does not stall on them."""
    world = world_of()
    for number in range(200):
        world.put("t", b"%d" % number)
    given: list[str] = []
    while messages := world.pop("g", "t"):
        given += handles(messages)
    for handle in given:
        world.core.acks.change_invisible("g", "t", handle, 1000)
    world.core.rewrite_lagging()
    world.crash("process")
    world.clock.advance(1000)
    assert world.revive() == 200
    world.flush()
    assert world.revive() == 0


def test_a_revive_queue_of_acks_only_is_not_read_again_and_again() -> None:
    world = world_of()
    for number in range(100):
        world.put("t", b"%d" % number)
    while messages := world.pop("g", "t"):
        world.ack("g", "t", *handles(messages))
    world.save()
    changes = world.begin_save()
    ends = tuple(world.core.store.next_offset(world.core.revive_topic, number) for number in range(8))
    assert changes.head.pop.revive_offsets == ends


def test_a_long_open_delivery_is_written_again_so_that_recovery_reads_little() -> None:
    world = world_of(rewrite_after_records=16)
    world.put("t", b"held")
    world.pop("g", "t", invisible_ms=12 * 3_600_000)
    (held,) = world.core.state.table
    for _ in range(300):
        world.put("t", b"1")
        world.ack("g", "t", *handles(world.pop("g", "t")))
    world.core.rewrite_lagging()
    end = world.core.store.next_offset(world.core.revive_topic, held.revive_queue)
    assert end - held.revive_offset <= 16
    before = world.deliveries()
    world.save()
    world.crash("process")
    assert world.deliveries() == before
    world.clock.advance(12 * 3_600_000)
    assert world.revive() == 1


def _entries(world: World, topic: str, queue_id: int) -> list[Entry]:
    queue = world.core.store.queue(topic, queue_id)
    assert queue is not None
    return queue.read(0, queue.max_offset)


def test_a_damaged_message_stops_its_queue_and_no_other() -> None:
    """S7: never delivered, never skipped, and to be seen."""
    world = world_of(queues=2)
    world.put("t", b"damaged", queue_id=0)
    world.put("t", b"good", queue_id=1)
    (path,) = [path for path in world.disk.files() if path.suffix == ".log"]
    (damaged,) = _entries(world, "t", 0)
    world.disk.flip_bit(path, 8 * (damaged.position + 80))
    assert world.bodies(world.pop("g", "t")) == [b"good"]
    with pytest.raises(StatusError, match="queue 0 of t stands still at a damaged record") as caught:
        world.answer("g", "t")
    assert caught.value.code == Code.INTERNAL_ERROR, "not that there is none"
    assert "popwheel_damaged_queues 1.0" in metrics(world)


@pytest.mark.parametrize("popped", [False, True])
def test_an_entry_that_leads_to_another_message_delivers_none(popped: bool) -> None:
    """Its page may have been written wrongly, but records know their place (S3, P4)."""
    options = BrokerOptions(log=LogOptions(queue_entries_in_memory=0))
    world = World(0, options)
    world.add_topic("t")
    world.add_group("g")
    world.put("t", b"1")
    world.put("t", b"2")
    if popped:
        world.pop("g", "t")
    world.save()
    first, second = world.core.store.queues["t", 0].read(0, 2)
    replace_entry(world.disk, second, first)
    if popped:
        (delivery,) = world.core.state.table
        with pytest.raises(CorruptDataError, match=r"leads to the record at \d+, which is t/0 offset 0"):
            world.core.acks.redeliver([(delivery, 1)], attempted=True)
        assert delivery.open_bits == 0b11
    else:
        with pytest.raises(StatusError, match="stands still at a damaged record"):
            world.pop("g", "t", 2)
        assert "popwheel_damaged_queues 1.0" in metrics(world)
    for each in index_files(world.disk):
        world.disk.remove(each)
    world.crash("process")
    if popped:
        world.clock.advance(INVISIBLE_MS)
        world.revive()
        world.flush()
    assert sorted(world.bodies(world.pop("g", "t"))) == [b"1", b"2"]


def test_a_selective_filter_goes_on_over_many_messages() -> None:
    """A scan that ends on its bound says that something waits still, so nobody goes to sleep."""
    world = world_of(scan_entries_max=16)
    for _ in range(100):
        world.put("t", b"other", tag="other")
    world.put("t", b"rare", tag="rare")
    pops = 0
    while not (answer := world.answer("g", "t", expression="rare")).messages:
        assert answer.waiting > 0
        pops += 1
    assert pops == 6
    assert answer.waiting == 0
    assert world.answer("g", "t", expression="rare").waiting == 0


def test_an_answer_is_no_larger_than_allowed_but_for_a_single_message() -> None:
    world = world_of(response_bytes_max=1024)
    for size in (3000, 100, 100, 100, 100):
        world.put("t", bytes(size))
    sizes = []
    while True:
        answer = world.answer("g", "t")
        sizes.append([len(message) > 3000 for message in answer.messages])
        if not answer.messages:
            break
        assert answer.waiting == 5 - sum(map(len, sizes))
    assert sizes == [[True], [False, False], [False, False], []]


def test_a_filter_of_an_unknown_kind_is_refused() -> None:
    world = world_of()
    request = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=1, filter=pb.Filter(kind=pb.SQL92))
    with pytest.raises(StatusError) as caught:
        world.core.pops.pop(request, world.core.pops.rotation())
    assert caught.value.code == Code.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("*", b"abcd"), ("", b"abcd"), (" * ", b"abcd"), ("a", b"a"), ("a||c", b"ac"), (" a  ||  b ", b"ab"), ("x", b"")],
)
def test_tag_filters(expression: str, expected: bytes) -> None:
    world = world_of()
    for tag in ("a", "b", "c", ""):
        world.put("t", (tag or "d").encode(), tag=tag)
    assert b"".join(world.bodies(world.pop("g", "t", expression=expression))) == expected


def test_a_retried_message_comes_though_the_filter_has_changed() -> None:
    world = world_of()
    world.put("t", b"a", tag="a")
    world.core.acks.release("g", "t", handles(world.pop("g", "t", expression="a")), True)
    world.flush()
    assert world.bodies(world.pop("g", "t", expression="b")) == [b"a"]


def test_ids_are_never_delivered_twice_though_their_records_were_lost() -> None:
    """A handle of a lost pop must not be good for a pop after the restart (P7)."""
    for seed in range(20):
        world = world_of(seed)
        world.put("t", b"1")
        old = handles(world.pop("g", "t"))
        world.crash("power")
        survived = len(world.core.state.table) == 1
        new = handles(world.pop("g", "t"))
        assert (len(new) == 0) == survived
        assert (world.ack("g", "t", *old) == [Code.OK]) == survived


def test_a_release_that_names_a_message_twice_frees_it_once() -> None:
    world = world_of()
    world.put("t", b"1")
    (handle,) = handles(world.pop("g", "t"))
    results = world.core.acks.release("g", "t", [handle, handle], False)
    assert [result.code for result in results] == [Code.OK, Code.OK]
    world.flush()
    messages = world.pop("g", "t")
    assert (world.bodies(messages), attempts(messages)) == ([b"1"], [1])


def test_an_ack_that_names_a_message_twice_says_so() -> None:
    world = world_of()
    world.put("t", b"1")
    (handle,) = handles(world.pop("g", "t"))
    assert world.ack("g", "t", handle, handle) == [Code.OK, Code.INVALID_RECEIPT_HANDLE]


def test_a_handle_of_a_later_master_says_that_this_one_leads_no_more() -> None:
    """Called void, it would end the client's tries, though the master of now knows it."""
    later, world = world_of(), world_of()
    for each in (later, world):
        each.put("t", b"1")
        each.put("t", b"2")
    (good,) = handles(world.pop("g", "t", max_messages=1))
    later.core.state.table.restart_ids(1, epoch=7)
    (handle,) = handles(later.pop("g", "t", max_messages=1))
    acks, open_messages = world.core.acks, world.core.state.table.open_messages
    for call in (
        lambda: acks.ack("g", "t", [good, handle]),
        lambda: acks.change_invisible("g", "t", handle, 1000),
        lambda: acks.renew([pb.RenewEntry(group="g", topic="t", receipt_handle=handle)], 1000),
        lambda: acks.release("g", "t", [good, handle], False),
        lambda: acks.dead_letter("g", "t", handle),
    ):
        with pytest.raises(StatusError, match="a later master") as caught:
            call()
        assert caught.value.code == Code.HA_NOT_AVAILABLE
        assert world.core.state.table.open_messages == open_messages
    assert world.ack("g", "t", good) == [Code.OK]


def test_a_topic_that_the_controller_lost_is_kept() -> None:
    """A controller that lost its state must not cost messages."""
    world = world_of()
    world.put("t", b"1")
    world.view.topics.clear()
    world.core.cluster_changes.apply()
    world.add_group("g")
    assert world.bodies(world.pop("g", "t")) == [b"1"]


def test_a_topic_that_was_made_again_while_the_broker_was_away_is_empty() -> None:
    world = world_of()
    world.put("t", b"old")
    world.save()
    world.disk.crash("process")
    world.view.topics["t"].id = 77
    world.start()
    assert world.pop("g", "t") == []
    world.put("t", b"new")
    world.crash("process")
    assert world.bodies(world.pop("g", "t")) == [b"new"]


def test_one_seed_is_one_history() -> None:
    def history(seed: int) -> dict[str, bytes]:
        world = world_of(seed, queues=4)
        dice = random.Random(seed)
        for number in range(60):
            world.put("t", b"%d" % number, queue_id=dice.randrange(4))
            given = handles(world.pop("g", "t", 3))
            world.ack("g", "t", *given[:1])
            world.clock.advance(5000)
            world.revive()
        world.crash("power")
        return {str(path): data for path, data in world.disk.files().items()}

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_the_disk_is_synced_by_the_checkpoint() -> None:
    world = world_of()
    world.put("t", b"1")
    world.pop("g", "t")
    world.save()
    run_now(world.core.store.log.sync())
    assert world.disk.unsynced_bytes == 0


def test_names_survive_with_the_messages_that_came_after_them() -> None:
    """A topic made again while the broker was down is told from the one before, checkpoint or not."""
    world = world_of()
    world.put("t", b"1")
    world.saved = None
    world.view.topics.clear()
    world.crash("power")
    assert world.bodies(world.pop("g", "t")) == [b"1"]
    world.add_topic("t")
    assert world.bodies(world.pop("g", "t")) == []
