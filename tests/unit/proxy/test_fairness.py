"""Ten thousand waiting polls over several topics: a burst on one of them does not hold up the polls of the others."""

import asyncio
import time

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import Filter
from popwheel_proxy.receive.interest import Ticket
from popwheel_proxy.receive.interest_book import InterestBook
from tests.unit.proxy.virtual import LoopClock, arrive, now, run
from tests.unit.proxy.world import CLIENT, World, poll_request, until, world

POLLS = 10_000
QUIET = tuple(f"quiet-{number}" for number in range(8))
CLIENTS = 16
CPU_S_MAX = 60.0
"""Several times what it takes: to see a square of their number, not a slow machine."""


def start_polls(w: World, topic: str, count: int) -> list["asyncio.Task[float]"]:
    """Begin polls; each says when it was answered."""

    async def poll(client: str) -> float:
        request = poll_request(batch=1, message_queue=d.MessageQueue(topic=d.Resource(name=topic)))
        assert (await w.receive(request, CLIENT | {"x-mq-client-id": client})).code == Code.OK
        return now()

    return [asyncio.create_task(poll(f"client-{index % CLIENTS}")) for index in range(count)]


def test_a_burst_does_not_hold_up_others() -> None:
    async def body() -> None:
        limits = {"polls_per_client_max": POLLS, "polls_per_connection_max": POLLS}
        async with world(clock=LoopClock(), poll_mode="notify", receive=limits) as w:
            for topic in QUIET:
                w.controller.add_topic(topic)
            await until(lambda: len(w.app.view.topics) > len(QUIET))
            busy = start_polls(w, "orders", POLLS - 100 * len(QUIET))
            quiet = [poll for topic in QUIET for poll in start_polls(w, topic, 100)]
            await until(lambda: w.metric("popwheel_proxy_polls_waiting") == POLLS)
            await asyncio.sleep(1)
            began = now()
            await arrive(w.broker, "orders", len(busy))
            for topic in QUIET:  # told after the burst
                await arrive(w.broker, topic, 100)
            others = [answered - began for answered in await asyncio.gather(*quiet)]
            burst = [answered - began for answered in await asyncio.gather(*busy)]
            assert max(others) < max(burst) / 4, "the quiet topics waited for the burst to be over"
            assert min(others) < max(burst) / 10
            assert w.metric("popwheel_proxy_poll_wakes_without_message_total") == 0

    cpu_began = time.process_time()
    run(body())
    assert time.process_time() - cpu_began < CPU_S_MAX


def test_one_broker_that_pops_one_at_a_time_serves_all_topics_in_turn() -> None:
    """On virtual time of its own: the broker takes 0.1 ms for a pop, one message each."""
    pop_s, book = 1e-4, InterestBook(100, 1 << 20, 10.0)
    queue: list[Ticket] = []
    topics = ("burst", *QUIET)
    interests = {topic: book.enter(topic, "group", Filter()) for topic in topics}
    left = {"burst": POLLS - 100 * len(QUIET)} | dict.fromkeys(QUIET, 100)
    for topic, count in left.items():
        for number in range(count):
            # Each waiter is a callable of its own, as each poll is.
            assert book.wait(interests[topic], lambda ticket, number=number: queue.append(ticket), 0.0) is None  # type: ignore[misc]
    for topic in topics:
        book.notified(interests[topic].id, "broker", left[topic], 0.0)
    served: dict[str, float] = {}
    time_s = 0.0
    while queue:
        ticket = queue.pop(0)
        time_s += pop_s
        topic = ticket.interest.topic
        left[topic] -= 1
        book.finish(ticket, 1, left[topic], time_s)
        served[topic] = time_s
    assert not any(left.values())
    assert served["burst"] > 0.99 * POLLS * pop_s
    # All quiet topics and the burst have the same number of pops in the queue.
    assert max(served[topic] for topic in QUIET) < 100 * (len(QUIET) + 2) * pop_s
