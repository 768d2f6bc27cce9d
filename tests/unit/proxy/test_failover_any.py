"""Masters that die, hang, are deposed, lose answers and come back in any order, under sends, acks and polls."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_rpc.status import GrpcStatus, RpcError
from tests.unit.proxy.replicas import Groups, groups
from tests.unit.proxy.virtual import now, run
from tests.unit.proxy.world import CLIENT, message, poll_request

NAMES = ("a", "b")
DEADLINE_S = 3.0
PROCESSING_S = 0.05

Event = tuple[float, str, str, int]
"""Seconds before it, the event, its group, and a number."""

events = st.lists(
    st.tuples(
        st.floats(0, 1.0),
        st.sampled_from(("kill", "elect", "hang", "go on", "depose", "lose", "nobody", "depart", "return")),
        st.sampled_from(NAMES),
        st.integers(0, 1),
    ),
    max_size=12,
)


@dataclass(slots=True)
class Story:
    """What was asked and how it ended: message id -> code, -1 if the client's deadline passed."""

    ended: dict[str, int] = field(default_factory=dict)
    acked: Counter[int] = field(default_factory=Counter)
    departed: bool = False


async def happen(w: Groups, story: Story, what: str, name: str, number: int) -> None:
    """One event."""
    replica = w.replicas[name][number]
    there = name in w.controller.brokers
    if what == "kill":
        await replica.kill()
    elif what == "elect" and there:
        replica.alive = True
        w.elect(name, number)
    elif what == "hang":
        replica.hangs.clear()
    elif what == "go on":
        replica.hangs.set()
    elif what == "depose":
        replica.leads = False
    elif what == "lose":
        replica.answers_lost += 2
    elif what == "nobody" and there:
        w.tell(name, None)
    elif what == "depart" and there:
        story.departed = True
        w.controller.remove_broker(name)
    elif what == "return":
        replica.alive = True
        replica.hangs.set()
        w.elect(name, number)


async def produce(w: Groups, story: Story, message_id: str) -> None:
    """Send one message and keep how that ended."""
    request = pb.SendMessageRequest(messages=[message(message_id=message_id)]).SerializeToString()
    began = now()
    try:
        answer = await w.channel.call(protocol.SEND_MESSAGE, request, metadata=CLIENT, timeout_s=DEADLINE_S)
        story.ended[message_id] = pb.SendMessageResponse.FromString(answer).status.code
    except RpcError as error:
        assert error.status is GrpcStatus.DEADLINE_EXCEEDED
        story.ended[message_id] = -1
    assert now() - began <= DEADLINE_S + PROCESSING_S


async def consume(w: Groups, story: Story, name: str) -> None:
    """Poll and acknowledge until cancelled."""
    while True:
        received = await w.receive(poll_request(broker=name, wait_s=6.0, batch=4))
        assert received.code in (Code.OK, Code.MESSAGE_NOT_FOUND, Code.HA_NOT_AVAILABLE), received.code
        if received.handles:
            answer = await w.ack(*received.handles)
            story.acked.update(int(entry.status.code) for entry in answer.entries)
        elif received.code != Code.OK:
            await asyncio.sleep(0.1)


async def play(story: list[Event]) -> None:
    """Live through it, then heal, then look at what was kept."""
    reported = Story()
    async with groups(*NAMES) as w:
        consumers = [asyncio.create_task(consume(w, reported, name)) for name in NAMES]
        sends: list[asyncio.Task[None]] = []

        async def send_for(seconds: float) -> None:
            until = now() + seconds
            while now() < until:
                sends.append(asyncio.create_task(produce(w, reported, f"m-{len(sends):04}")))
                await asyncio.sleep(0.05)

        for after_s, what, name, number in story:
            await send_for(after_s)
            await happen(w, reported, what, name, number)
        await send_for(0.5)
        for name in NAMES:
            for replica in w.replicas[name]:
                replica.answers_lost = 0
            await happen(w, reported, "return", name, 0)
        healed_at = len(sends)
        await asyncio.sleep(0.3)
        await send_for(1.0)
        await asyncio.gather(*sends)
        await asyncio.sleep(12.0)
        for consumer in consumers:
            consumer.cancel()
        for ended in await asyncio.gather(*consumers, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended
        assert w.is_idle()
        check(w, reported, healed_at)


def check(w: Groups, reported: Story, healed_at: int) -> None:
    """Nothing acknowledged is lost, nothing refused is kept, nothing stands twice, and after healing all goes well."""
    copies: Counter[str] = Counter()
    for log in w.logs.values():
        assert len(log.ids) == len(set(log.ids)), "twice in one group"
        copies.update(log.ids)
    for message_id, code in reported.ended.items():
        assert code in (Code.OK, Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT, -1), code
        if code == Code.OK:
            assert copies[message_id] >= 1, f"{message_id} is lost"
        if code == Code.HA_NOT_AVAILABLE:
            assert copies[message_id] == 0, f"{message_id} was refused, and is there"
        if not reported.departed:
            assert copies[message_id] <= 1, f"{message_id} is there twice"
    assert {code for message_id, code in reported.ended.items() if int(message_id[2:]) >= healed_at} == {Code.OK}
    assert set(reported.acked) <= {Code.OK, Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT}


@settings(max_examples=60, deadline=None)
@given(events)
def test_nothing_is_lost_or_doubled_whatever_happens_to_masters(story: list[Event]) -> None:
    run(play(story))


def test_a_story_that_has_everything() -> None:
    run(
        play(
            [
                (0.3, "lose", "a", 0),
                (0.2, "kill", "a", 0),
                (0.2, "nobody", "a", 0),
                (0.4, "hang", "b", 0),
                (0.9, "elect", "a", 1),
                (0.9, "nobody", "b", 0),
                (0.1, "elect", "b", 1),
                (0.2, "depose", "a", 1),
                (0.3, "elect", "a", 0),
                (0.3, "kill", "b", 1),
                (0.2, "depart", "b", 0),
                (1.0, "return", "b", 0),
            ]
        )
    )
