"""Changes of roles that go wrong halfway, and what is left of a role when it is over."""

import errno
from collections.abc import Callable

from services.broker.core import BrokerCore
from services.broker.store.commit_log import CommitLog
from tests.unit.broker.group_world import Member, group_of, until


def fail_new_cores(member: Member, times: int) -> list[int]:
    """Have a replica fail that often to make a core; how often it has is what the list holds."""
    files = member.alive.files
    make: Callable[[CommitLog | None], BrokerCore] = files._make_core
    failed: list[int] = []

    def make_core(log: CommitLog | None) -> BrokerCore:
        if len(failed) < times:
            failed.append(1)
            raise OSError(errno.EMFILE, "too many open files")
        return make(log)

    files._make_core = make_core
    return failed


async def test_a_deposed_master_that_cannot_begin_anew_at_once_follows_with_a_new_core_all_the_same() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1", b"2")
        await w.in_sync(0, 1)
        led = w.members[0].alive.core
        failed = fail_new_cores(w.members[0], 1)
        await w.lead(1)
        await w.in_sync(0, 1)
        assert failed and w.members[0].alive.core is not led and not w.members[0].alive.core.is_finished
        await w.put(b"3", b"4")
        await w.in_sync(0, 1)
        await w.members[1].kill()
        await w.lead(0)
        assert (await w.put(b"5")).queue_offset == 4
        assert sorted(await w.pop()) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_deposed_master_that_cannot_begin_anew_leads_again_with_all() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1")
        await w.in_sync(0, 1)
        failed = fail_new_cores(w.members[0], 1)
        await w.lead(1)
        await until(lambda: bool(failed))
        await w.members[1].kill()
        await w.lead(0)
        assert (await w.put(b"2")).queue_offset == 1
        assert sorted(await w.pop()) == [b"1", b"2"]


async def test_who_was_about_to_lead_when_another_was_named_follows_with_a_new_core() -> None:
    async with group_of() as w:
        await w.lead(0)
        await w.in_sync(0, 1)
        await w.put(b"1")
        await w.in_sync(0, 1)
        slave = w.members[1]
        slave.disk.fill(0)
        w.elect(1)  # its epoch can't be written down
        await until(lambda: slave.alive.following is None)
        slave.disk.fill(1 << 30)
        await w.lead(0)
        await w.in_sync(0, 1)
        await until(lambda: slave.alive.following is not None)
        assert slave.alive.files.is_followers and not slave.alive.core.is_finished
        await w.put(b"2")
        await w.in_sync(0, 1)
        await w.members[0].kill()
        await w.lead(1)
        assert (await w.put(b"3")).queue_offset == 2
        assert sorted(await w.pop()) == [b"1", b"2", b"3"]
