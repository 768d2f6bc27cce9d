"""The stream over real sockets: what is larger than the transport's windows goes through, too."""

import asyncio
from collections.abc import Callable

from popwheel_broker.replication.log_receiver import Slave
from popwheel_broker.replication.replication_slave import ReplicationSlave
from popwheel_common.clock import SystemClock, Uptime
from popwheel_rpc.client.socket_channel import connect
from popwheel_rpc.server.server import Server
from tests.harness.manual_clock import ManualClock
from tests.unit.broker.replica.memory_log import MemoryLog
from tests.unit.broker.replica.replicas import GROUP, World

MIB = 2**20


class RealTimeClock(ManualClock):
    """The machine's clock in place of the tests' one."""

    def __init__(self) -> None:
        super().__init__()
        self._system = SystemClock()

    def wall_ms(self) -> int:
        return self._system.wall_ms()

    def steady_ms(self) -> int:
        return self._system.steady_ms()

    def monotonic(self) -> float:
        return self._system.monotonic()

    def uptime(self) -> Uptime:
        return self._system.uptime()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


async def test_checkpoint_and_records_that_are_larger_than_windows_go_through() -> None:
    world = World(RealTimeClock(), chunk_bytes=4 * MIB, window_bytes=8 * MIB)
    master = world.replicas[0]
    master.lead(world.controller.state)
    master.write(3)
    master.log.checkpoint = bytes(range(256)) * 40_000
    await master.log.delete_before(master.log.positions()[1])
    master.write(3, b"z" * 3 * MIB)
    server = Server(master.service)
    await server.start("127.0.0.1", 0)
    log = MemoryLog()
    failures: list[Exception] = []
    follower = world.replicas[1]
    slave = ReplicationSlave(
        Slave(
            *(GROUP, 1, b"identity", 1, log, world.constants, world.clock),
            *(follower.statistics, follower.repairer.repair, failures.append),
        ),
        lambda: connect(f"127.0.0.1:{server.port}"),
    )
    slave.start()
    await until(lambda: log.synced_position == master.log.end_position)
    assert log.installed == [master.log.checkpoint]
    for _ in range(20):
        master.write(1, b"z" * 100_000)
        await asyncio.sleep(0)
    await until(lambda: master.members is not None and master.members.high_watermark == master.log.end_position)
    assert log.outline() == master.log.outline()
    assert master.statistics.streams_broken == 0

    # The master's process ends and comes back at the same place.
    port = server.port
    await server.stop(0)
    await until(lambda: not slave.is_connected)
    server = Server(master.service)
    await server.start("127.0.0.1", port)
    master.write(2)
    await until(lambda: log.synced_position == master.log.end_position)
    assert not failures
    await slave.stop()
    await server.stop(0)
    await world.stop()
