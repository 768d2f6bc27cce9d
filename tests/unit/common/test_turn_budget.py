"""Work of one kind is begun in a later turn of the loop when this one has had enough of it, in order."""

import asyncio

from popwheel_common.turn_budget import TurnBudget


async def test_a_turn_spends_no_more_than_the_budget_and_one_piece() -> None:
    budget = TurnBudget(10)
    done: list[tuple[int, int]] = []
    turn = 0

    async def work(number: int, cost: int) -> None:
        await budget.room()
        done.append((turn, number))
        budget.spend(cost)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    counting = asyncio.create_task(count_turns())
    await asyncio.gather(*(work(number, 4) for number in range(9)))
    counting.cancel()
    assert [number for _, number in done] == list(range(9)), "who came first goes first"
    by_turn = [sum(at == each for at, _ in done) for each, _ in done]
    assert max(by_turn) == 3, "8 are spent, then 12"


async def test_who_comes_while_there_is_room_waits_for_nothing() -> None:
    budget = TurnBudget(10)
    budget.spend(9)
    for _ in range(3):
        task = asyncio.create_task(budget.room())
        await asyncio.sleep(0)
        assert task.done()


async def test_one_that_gives_up_holds_up_nobody() -> None:
    budget = TurnBudget(1)
    budget.spend(5)
    waiting = [asyncio.create_task(budget.room()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    await waiting[2]
    budget.spend(0)
    await budget.room()
