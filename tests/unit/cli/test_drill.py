"""A drill strikes, watches, and says what it cost; and what it refuses to do."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from popwheel_cli.admin.drill import partners, show_bill
from popwheel_cli.drills import drill as drills
from popwheel_cli.drills.account import Account, Delivery
from popwheel_cli.drills.drill import Bill, Drill
from popwheel_cli.errors import CommandError
from popwheel_common.clock import SystemClock
from tests.unit.cli.fake_admin_api import GROUP, STATUS, FakeAdminApi
from tests.unit.cli.test_main import call, sentence_of

AFTER = {**GROUP, "epoch": 4, "master": 1}


class FakeTraffic:
    """Sends and receives by itself, unless the world stands still.

    Args:
        account: where it writes.
        world: tells whether it does.
    """

    def __init__(self, account: Account, world: "World") -> None:
        self._account = account
        self._world = world
        self._task: asyncio.Task[None] | None = None
        self._late: asyncio.Task[None] | None = None
        self.last_due_ms = 0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def stop_sending(self) -> None:
        await self._end(self._task)
        self._late = asyncio.create_task(self._come_late())

    async def stop(self) -> None:
        await self._end(self._task)
        await self._end(self._late)

    async def _end(self, task: "asyncio.Task[None] | None") -> None:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _come_late(self) -> None:
        await asyncio.sleep(self._world.late_s)
        if self._world.late:
            self._come(self._world.late)

    def _come(self, body: str) -> None:
        account, clock = self._account, SystemClock()
        account.delivered(body, Delivery(clock.monotonic(), clock.wall_ms(), 1))
        account.ack_asked(body)
        account.acked(body)

    async def _go_on(self) -> None:
        account, clock = self._account, SystemClock()
        for number in itertools.count():
            if not self._world.stands_still:
                due_ms = clock.wall_ms() - 3 if number % 2 else None
                body = f"{number}"
                account.trying(body, "a", number, due_ms)
                account.sent(body, clock.monotonic())
                if body not in (self._world.loses, self._world.late):
                    self._come(body)
            await asyncio.sleep(0.001)


class World:
    """A group whose master is struck."""

    def __init__(self) -> None:
        self.account = Account()
        self.view: dict[str, Any] = GROUP
        self.stands_still = False
        self.loses = ""
        self.late = ""
        self.late_s = 0.0
        self.heals = True
        self.mended = False
        self.traffic = FakeTraffic(self.account, self)

    def strike(self, view: Any) -> None:
        assert view == GROUP
        self.stands_still = True
        self.view = {**GROUP, "master": None, "sync_state_set": [1], "trouble": "dead"}

    def mend(self) -> None:
        self.mended = True
        if self.heals:
            self.stands_still, self.view = False, AFTER

    async def drill(self, strike: Callable[[Any], None], seconds: float = 0.1) -> Bill:
        traffic: Any = self.traffic
        steps: list[str] = []
        drill = Drill("kill-master", lambda: self.view, traffic, self.account, SystemClock(), steps.append)
        return await drill.run(strike, self.mend, seconds)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("_BEFORE_S", "_AFTER_S", "_QUIET_S", "_POLL_S"):
        monkeypatch.setattr(drills, name, 0.02)
    monkeypatch.setattr(drills, "_HEALTHY_S_MAX", 1.0)
    for name in ("INVISIBLE_S", "_DETECTION_S", "_DRAIN_S"):
        monkeypatch.setattr(drills, name, 0.1)
    return World()


async def test_a_drill_that_costs_time_only(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    bill = await world.drill(world.strike)
    assert (bill.master_before, bill.master_after, bill.epoch_before, bill.epoch_after) == (0, 1, 3, 4)
    assert bill.new_master_s is not None
    assert bill.healthy_again_s is not None
    assert bill.without_send_s >= 0.1
    assert bill.without_receive_s >= 0.1
    assert bill.usual_gap_s < 0.1
    assert (bill.lost, bill.repeated, bill.timers_late, bill.failed_calls) == (0, 0, 0, 0)
    assert bill.clean
    assert bill.sent == bill.received
    show_bill(bill, "table")
    words = capsys.readouterr().out.splitlines()
    assert words[0].split() == ["KILL-MASTER", "BROKER-0"]
    assert ["lost", "0"] in [line.split() for line in words]
    show_bill(bill, "json")
    assert '"master_after": 1' in capsys.readouterr().out


async def test_what_is_lost_is_on_the_bill(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.loses = "4"
    bill = await world.drill(world.strike)
    assert not bill.clean
    assert bill.lost == 1
    show_bill(bill, "table")
    assert "1 lost: ['4']" in capsys.readouterr().err


async def test_what_is_invisible_for_an_answer_that_got_lost_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "INVISIBLE_S", 1.0)
    monkeypatch.setattr(drills, "_DETECTION_S", 0.3)
    world.late, world.late_s = "5", 1.3
    bill = await world.drill(world.strike)
    assert (bill.lost, bill.timers_late, bill.clean) == (0, 1, True)
    assert bill.late_max_ms > 1300


async def test_what_is_not_due_is_not_lost(world: World) -> None:
    world.traffic.last_due_ms = SystemClock().wall_ms() + 1500
    world.late, world.late_s = "5", 1.0
    assert (await world.drill(world.strike)).clean


async def test_nobody_takes_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills, "_HEALTHY_S_MAX", 0.3)
    world.heals = False
    bill = await world.drill(world.strike)
    assert (bill.new_master_s, bill.master_after, bill.healthy_again_s) == (None, None, None)


async def test_what_cannot_be_struck_is_mended_all_the_same(world: World) -> None:
    def strike(view: Any) -> None:
        raise CommandError("it is elsewhere")

    with pytest.raises(CommandError, match="it is elsewhere"):
        await world.drill(strike)
    assert world.mended


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        ({**GROUP, "master": None, "trouble": "all are dead"}, "has no master, so nothing was done: all are dead"),
        ({**GROUP, "sync_state_set": [0]}, "replica 0 of broker-0 is alone in its sync-state set"),
    ],
)
async def test_nothing_is_done_where_nobody_could_take_over(world: World, view: dict[str, Any], sentence: str) -> None:
    world.view = view
    with pytest.raises(CommandError, match=sentence):
        await world.drill(world.strike)
    assert not world.account.sends


async def test_nothing_is_done_without_traffic(world: World) -> None:
    world.stands_still = True
    with pytest.raises(CommandError, match="no traffic flows, so nothing was done"):
        await world.drill(world.strike)


def test_who_is_cut_off_from_whom() -> None:
    names = ["broker-0-0", "broker-0-1", "broker-1-0", "controller-0", "controller-1"]
    assert partners(names, "broker-0", GROUP, "controller") == ("broker-0-0", ["controller-0", "controller-1"])
    assert partners(names, "broker-0", AFTER, "slaves") == ("broker-0-1", ["broker-0-0"])
    assert partners(names, "broker-0", GROUP, "all") == ("broker-0-0", ["controller-0", "controller-1", "broker-0-1"])


@pytest.mark.parametrize(("seconds", "is_said"), [("8", False), ("9", True)])
def test_a_pause_that_a_parent_takes_for_a_hang_is_said_to_be_a_kill(seconds: str, is_said: bool) -> None:
    with FakeAdminApi({}) as api:
        words = ("drill", "pause-master", "broker-0", "--seconds", seconds, "--proxy", "127.0.0.1:1")
        result = call("admin", "--server", api.url, *words)
    assert ("children.silence_ms_max (10 s by default) kills it" in result.stderr) == is_said


def test_drills_say_what_they_lack(tmp_path: Path) -> None:
    with FakeAdminApi({"GET /cluster/status": (200, STATUS)}) as api:
        result = call("admin", "--server", api.url, "drill", "switchover", "broker-0")
        assert "no proxy is ready" in sentence_of(result)
        words = ("drill", "partition", "broker-0", "--data-dir", str(tmp_path))
        result = call("admin", "--server", api.url, *words)
        assert "start the cluster with `popwheel cluster --relays`" in sentence_of(result)
        assert result.exit_code == 1
