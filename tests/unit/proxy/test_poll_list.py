"""The polls of a proxy, as operators are shown them: how they wait, and what came of them."""

from popwheel_common.pb.popwheel.v1.controller_pb2 import PollInfo, PollListRequest
from popwheel_proxy.receive.poll_list import PollList
from tests.harness.loop_turns import TURN_S_MAX, measured_turns
from tests.unit.proxy.world import World, message, poll_request, until, world


async def listed(polls: PollList, limit: int = 100, **asked: str) -> list[PollInfo]:
    """All of them, page by page."""
    found: list[PollInfo] = []
    request = PollListRequest(limit=limit, **asked)
    while True:
        answer = await polls.some(request)
        assert len(answer.polls) <= limit
        found += answer.polls
        if not answer.more:
            return found
        request.after_topic, request.after_group = answer.polls[-1].topic, answer.polls[-1].group


def reported(world: World) -> PollList:
    return world.app.poll_list


async def test_a_poll_is_shown_and_what_came_of_it() -> None:
    async with world("b1", "b2") as w:
        assert await listed(reported(w)) == []
        poll = w.poll(poll_request())
        await until(lambda: w.app._book.waiting_polls == 1)
        (info,) = await listed(reported(w))
        assert (info.topic, info.group, info.mode) == ("orders", "group", "notify")
        assert (info.polls, info.brokers_waited_at) == (1, 2)
        assert (info.long_polls, info.short_hits, info.pops_with_notify) == (1, 0, 1)
        assert (info.wakeups, info.empty_wakeups) == (0, 0)
        await w.send(message())
        assert (await poll).bodies == [b"body"]
        (info,) = await listed(reported(w), topic="orders", group="group")
        assert (info.polls, info.brokers_waited_at, info.wakeups, info.empty_wakeups) == (0, 0, 1, 0)
        assert await listed(reported(w), topic="others") == []
        assert await listed(reported(w), group="others") == []


async def test_pages_hold_each_topic_and_group_once_and_turns_are_short() -> None:
    async with world("b1") as w:
        counts = w.app.poll_metrics.long_polls
        counts.known = lambda topic, group: topic != "gone"
        names = [(f"t{number // 100:03}", f"g{number % 100:02}") for number in range(5_000)]
        for topic, group in reversed(names):
            counts.inc(topic, group)
            w.app._mode_choice.count(topic, group)
        counts.inc("gone", "g00")
        with measured_turns() as turns:
            for limit in (7, 100, 500):
                some = await listed(reported(w), limit, topic="t001")
                assert [(each.topic, each.group) for each in some] == names[100:200]
        assert turns.longest_s < TURN_S_MAX, str(turns)
        assert len(await listed(reported(w), 500)) == 5_000
