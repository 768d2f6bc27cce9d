"""InFlightList and ProgressList as the controller calls them: page by page, and what follows for each message."""

import pytest

from popwheel_broker.core import message_search
from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_rpc import methods
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.broker.served_broker import Broker, refused, running
from tests.unit.broker.world import INVISIBLE_MS

RETRY = names.retry_topic("g", "t")


async def in_flight(broker: Broker, limit: int = 1000, group: str = "", topic: str = "t") -> list[pb.InFlightMessage]:
    """All of it, page by page."""
    found: list[pb.InFlightMessage] = []
    request = pb.InFlightListRequest(topic=topic, group=group, limit=limit)
    while True:
        answer = await broker.channel.call(methods.IN_FLIGHT_LIST, request)
        assert len(answer.messages) <= limit
        assert answer.epoch == 1
        found += answer.messages
        if not answer.next:
            return found
        request.begin = answer.next


async def progress(broker: Broker, limit: int = 1000, topic: str = "") -> dict[tuple[str, int], tuple[int, ...]]:
    """By queue: committed, next and maximal offset, and messages in flight; page by page."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    request = pb.ProgressListRequest(group="g", topic=topic, limit=limit)
    while True:
        answer = await broker.channel.call(methods.PROGRESS_LIST, request)
        assert len(answer.queues) <= limit
        for each in answer.queues:
            assert (each.topic, each.queue_id) not in found
            offsets = (each.committed_offset, each.next_offset, each.max_offset, each.in_flight)
            found[each.topic, each.queue_id] = offsets
        if not answer.next:
            return found
        request.begin = answer.next


async def test_pages_of_what_is_delivered() -> None:
    async with running() as broker:
        for number in range(300):
            await broker.put(b"%d" % number, queue_id=number % 2)
        for _ in range(10):
            await broker.pop(32)
        everything = await in_flight(broker)
        assert len(everything) == 300
        assert len({(each.queue_id, each.queue_offset) for each in everything}) == 300
        for limit in (1, 7, 128, 129, 300):
            assert await in_flight(broker, limit) == everything
        assert await in_flight(broker, 50, "g") == everything
        assert await in_flight(broker, 50, "h") == []


async def test_times_are_those_of_the_wall_clock() -> None:
    """Deliveries go by the time of the log, which a wall clock that jumps does not move."""
    async with running() as broker:
        await broker.put(b"a")
        await broker.pop()
        broker.clock.set_wall_ms(broker.clock.wall_ms() + 3_600_000)
        now_ms = broker.clock.wall_ms()
        (found,) = await in_flight(broker)
        assert (found.popped_ms, found.due_ms) == (now_ms, now_ms + INVISIBLE_MS)


async def test_progress_of_a_group_that_pops() -> None:
    async with running() as broker:
        assert await progress(broker) == {}
        for number in range(5):
            await broker.put(b"%d" % number)
        await broker.put(b"x", queue_id=1)
        assert await progress(broker) == {}, "it has read nothing"
        assert await progress(broker, topic="t") == {("t", 0): (-1, 0, 5, 0), ("t", 1): (-1, 0, 1, 0)}
        first, second, *_ = await broker.pop(6)
        found = await progress(broker)
        assert [each[1:] for each in found.values()] == [(5, 5, 5), (1, 1, 1)]
        await broker.ack(first, second)
        assert sum(each[3] for each in (await progress(broker)).values()) == 4


async def test_progress_of_retries_and_dead_letters() -> None:
    async with running() as broker:
        for body in (b"a", b"b", b"c"):
            await broker.put(body)
        first, second, third = await broker.pop()
        await broker.channel.call(
            methods.RELEASE, pb.ReleaseRequest(group="g", topic="t", receipt_handles=[second, third], attempted=True)
        )
        await broker.channel.call(methods.DEAD_LETTER, pb.DeadLetterRequest(group="g", topic="t", receipt_handle=first))
        assert (await progress(broker))[RETRY, 0] == (-1, 0, 2, 0)
        answer = await broker.channel.call(methods.PROGRESS_LIST, pb.ProgressListRequest(group="g", limit=1))
        assert answer.dead_letters == 1
        await broker.pop(1)
        assert (await progress(broker))[RETRY, 0][1:] == (1, 2, 1)
        assert list(await progress(broker, topic="t")) == [(RETRY, 0), ("t", 0)]


async def test_progress_of_a_group_that_only_commits() -> None:
    async with running() as broker:
        for number in range(5):
            await broker.put(b"%d" % number)
        await broker.channel.call(methods.UPDATE_OFFSET, pb.UpdateOffsetRequest(group="g", topic="t", offset=3))
        assert await progress(broker) == {("t", 0): (3, 3, 5, 0)}


async def test_pages_of_progress() -> None:
    async with running() as broker:
        for topic in ("t", "u", "v"):
            for queue_id in range(3):
                await broker.put(b"x", topic=topic, queue_id=queue_id)
                commit = pb.UpdateOffsetRequest(group="g", topic=topic, queue_id=queue_id, offset=1)
                await broker.channel.call(methods.UPDATE_OFFSET, commit)
        everything = await progress(broker)
        assert list(everything) == [(topic, queue_id) for topic in "tuv" for queue_id in range(3)]
        for limit in (1, 2, 3, 4, 8, 9):
            assert list(await progress(broker, limit)) == list(everything)


async def test_nothing_is_changed_by_looking() -> None:
    async with running() as broker:
        await broker.put(b"a")
        await broker.pop()
        end = broker.app.core.store.log.end_position
        pairs = broker.app.core.state.merge_buffer.pairs
        await in_flight(broker)
        await progress(broker, topic="t")
        await progress(broker, topic="unheard-of")
        assert broker.app.core.store.log.end_position == end
        assert broker.app.core.state.merge_buffer.pairs == pairs


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        (methods.IN_FLIGHT_LIST, pb.InFlightListRequest(topic="t", begin="x")),
        (methods.PROGRESS_LIST, pb.ProgressListRequest(group="g", begin="x")),
        (methods.PROGRESS_LIST, pb.ProgressListRequest(group="g", begin="t/x")),
    ],
)
async def test_what_is_no_place_is_refused(method: object, request_: object) -> None:
    async with running() as broker:
        with pytest.raises(StatusError, match="invalid page token") as caught:
            await broker.channel.call(method, request_)  # type: ignore[arg-type]
        assert caught.value.code == Code.BAD_REQUEST


async def states(broker: Broker, bodies: list[bytes]) -> dict[bytes, str]:
    """What docs/operate/messages.md says of each message of queue 0 for group g: progress first, then what is in
    flight, then what retries and dead letters hold.
    """
    call = broker.channel.call
    rows = (await call(methods.PROGRESS_LIST, pb.ProgressListRequest(group="g", topic="t", limit=1000))).queues
    next_offset = {each.topic: each.next_offset for each in rows if each.queue_id == 0}
    held = {each.message_id for each in await in_flight(broker, group="g")}

    async def ids(topic: str) -> list[str]:
        request = pb.PullRequest(group="auditor", topic=topic, offset=0, max_messages=1000)
        return [message_id(each) for each in (await call(methods.PULL, request)).messages]

    latest = dict(enumerate(await ids("t")))
    retries = {each: offset for offset, each in enumerate(await ids(RETRY))} if RETRY in next_offset else {}
    dead = set(await ids(names.dead_letter_topic("g")))
    found: dict[bytes, str] = {}
    for offset, each in latest.items():
        if each in dead:
            state = "dead"
        elif each in held:
            state = "in flight"
        elif each in retries:
            state = "acked" if retries[each] < next_offset[RETRY] else "waits for its retry"
        else:
            state = "acked" if offset < next_offset["t"] else "unread"
        found[bytes.fromhex(each)] = state
    return {body: found[body] for body in bodies}


def message_id(data: bytes) -> str:
    return Message.FromString(data).system_properties.message_id


async def test_an_auditor_can_say_of_each_message_what_became_of_it() -> None:
    async with running() as broker:
        bodies = [b"%d" % number for number in range(9)]
        for body in bodies:
            await broker.put(body)
        given = await broker.pop(7)
        call = broker.channel.call
        await broker.ack(given[0])
        await call(methods.DEAD_LETTER, pb.DeadLetterRequest(group="g", topic="t", receipt_handle=given[1]))
        await call(methods.RELEASE, pb.ReleaseRequest(group="g", topic="t", receipt_handles=given[2:5]))
        expected = dict(zip(bodies, ["acked", "dead", *["waits for its retry"] * 3, *["in flight"] * 2], strict=False))
        expected |= dict.fromkeys(bodies[7:], "unread")
        rows = (await call(methods.PROGRESS_LIST, pb.ProgressListRequest(group="g", topic="t", limit=9))).queues
        assert [each.max_offset for each in rows if each.topic == RETRY] == [0], "its retries cannot be read yet"
        assert await states(broker, bodies) == expected
        for ends_with in ("acked", "in flight", "acked", "in flight"):
            popped = pb.PopRequest(group="g", topic="t", queue_id=-1, max_messages=1, invisible_ms=INVISIBLE_MS)
            answer = await call(methods.POP, popped)
            (message,), (handle,) = answer.messages, answer.handles
            if ends_with == "acked":
                await broker.ack(handle)
            expected[Message.FromString(message).body] = ends_with
        assert await states(broker, bodies) == expected
        assert set(expected.values()) >= {"acked", "dead", "in flight"}


async def test_messages_with_a_key_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_search, "_SCANNED_AT_ONCE", 128)
    async with running() as broker:
        for number in range(3000):
            await broker.put(b"%d" % number, queue_id=number % 2, keys=["odd" if number % 2 else "even", "all"])
        for key, count, limit in (("even", 1500, 1000), ("all", 3000, 7), ("nobody's", 0, 1)):
            request = pb.MessageListRequest(topic="t", key=key, until_ms=1 << 62, limit=limit)
            found: list[bytes] = []
            looked_through = pages = 0
            while True:
                answer = await broker.channel.call(methods.MESSAGE_LIST, request)
                assert len(answer.messages) <= limit
                assert answer.looked_through <= 16 * 128, "a page is so much work at the most"
                found += [Message.FromString(each.message).body for each in answer.messages]
                looked_through += answer.looked_through
                pages += 1
                if not answer.next:
                    break
                request.begin = answer.next
            assert len(set(found)) == len(found) == count
            assert looked_through == 3000
            assert pages > 1
        await refused(
            broker.channel.call(methods.MESSAGE_LIST, pb.MessageListRequest(topic="t")), Code.BAD_REQUEST, "message key"
        )
        await refused(
            broker.channel.call(methods.MESSAGE_LIST, pb.MessageListRequest(topic="t", key="x", begin="nowhere")),
            Code.BAD_REQUEST,
            "page token",
        )


async def test_a_page_of_large_messages_ends_before_it_is_large() -> None:
    async with running() as broker:
        for number in range(20):  # its id is as long as two bodies
            await broker.put(b"%d" % number + bytes(1 << 18), keys=["large"])
        request = pb.MessageListRequest(topic="t", key="large", until_ms=1 << 62, limit=1000)
        answer = await broker.channel.call(methods.MESSAGE_LIST, request)
        assert 4 << 20 < sum(len(each.message) for each in answer.messages) < 6 << 20
        assert answer.next


async def test_messages_with_very_many_keys_hold_no_turn_of_the_loop_up() -> None:
    """Keys of 16 KiB, all of which begin with the wanted one: each message has to be taken apart."""
    keys = [f"k{number}" for number in range(2_500)]
    async with running() as broker:
        for number in range(300):
            await broker.put(b"%d" % number, keys=keys)
        request = pb.MessageListRequest(topic="t", key="k", until_ms=1 << 62, limit=1000)
        with measured_turns() as turns:
            answer = await broker.channel.call(methods.MESSAGE_LIST, request)
        assert (len(answer.messages), answer.looked_through, answer.next) == (0, 300, "")
        assert turns.longest_s < TURN_S_MAX, str(turns)
