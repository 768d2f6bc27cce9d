"""Each attack on HTTP/2 against a real process: it ends at its limit, costs little, and all others are served.

`pytest -s tests/integration/test_attacks.py` prints what each costs; docs/operate/access.md has the figures.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as d
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from tests.harness.attacks import ATTACKS, Attack, Target
from tests.harness.client import SERVICE
from tests.harness.metrics import metric
from tests.harness.others import others_are_served
from tests.harness.standalone import StandaloneProcess

CHUNK_BYTES = 64 * 1024
MIB = 2**20
PATIENCE_S = 60.0

HOSTS = [d.Address(host="127.0.0.1" if not number else "h" * 250, port=number) for number in range(64)]
"""As many and as long as they are taken: the answer has them once for each queue, 130 KB in all."""
TARGET = Target(
    f"/{SERVICE}/Telemetry",
    f"/{SERVICE}/QueryRoute",
    pb.QueryRouteRequest(
        topic=d.Resource(name="Attacked"), endpoints=d.Endpoints(scheme=d.IPv4, addresses=HOSTS)
    ).SerializeToString(),
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("attacked") / "data") as process:
        yield process


def hits(server: StandaloneProcess, limit: str) -> float:
    """How often a limit was gone past, as /metrics tells."""
    return metric(server, "popwheel_rpc_limit_hits_total", limit=limit)


def memory_kib(server: StandaloneProcess, field: str) -> int:
    """A line of the process's memory figures: VmRSS, or VmHWM, the most since `forget_peak`."""
    for line in Path(f"/proc/{server.pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(f"no {field}")


def forget_peak(server: StandaloneProcess) -> None:
    """Begin to measure the peak anew."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")


async def attack_it(server: StandaloneProcess, attack: Attack) -> None:
    """Send all of it, until the server closes the connection or, for one that it does not close, has had enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.grpc_port)
    before = await asyncio.to_thread(hits, server, attack.limit)
    sent = attack.start() + b"".join(attack.frames(TARGET))

    async def read() -> None:
        while attack.reads and await reader.read(MIB):
            pass

    reading = asyncio.create_task(read())
    try:
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(sent), CHUNK_BYTES):
                writer.write(sent[at : at + CHUNK_BYTES])
                # Who reads nothing is not told that the other side has gone: what he sends is refused in the end.
                async with asyncio.timeout(PATIENCE_S):
                    await writer.drain()
        async with asyncio.timeout(PATIENCE_S):
            while await asyncio.to_thread(hits, server, attack.limit) == before:
                await asyncio.sleep(0.05)
            if attack.closes and attack.reads:
                with contextlib.suppress(ConnectionError):
                    await reading
    finally:
        reading.cancel()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reading
        writer.transport.abort()
        await asyncio.sleep(0)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_an_attack_ends_at_its_limit_and_others_are_served(attacked: StandaloneProcess, attack: Attack) -> None:
    async with others_are_served(attacked.grpc_address):
        start_kib = memory_kib(attacked, "VmRSS")
        forget_peak(attacked)
        await attack_it(attacked, attack)
        cost_mib = (memory_kib(attacked, "VmHWM") - start_kib) / 1024
    print(f"\n| {attack.name} | {attack.number or '-'} | `{attack.limit}` | {cost_mib:.1f} |")
    assert cost_mib < 2 * attack.in_use_mib + 16, "what it holds, and what Python needs to handle it"
