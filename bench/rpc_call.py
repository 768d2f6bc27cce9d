"""Cost of a call at a server: CPU per call of our transport and of grpcio's, same handlers, same client, in one run.

    python bench/rpc_call.py [--calls 20000] [--rounds 3]

The client (grpcio's asyncio client, four connections) runs beside the server; only the server's CPU is counted. Prints
the median of the rounds for each kind of call, and the ratio.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_rpc.service import RAW, Call, Method, Service, Stream, protobuf

NAME = "apache.rocketmq.v2.MessagingService"
SEND = Method(NAME, "SendMessage", protobuf(service.SendMessageRequest), protobuf(service.SendMessageResponse))
RECEIVE = Method(NAME, "ReceiveMessage", protobuf(service.ReceiveMessageRequest), RAW)
CONNECTIONS = 4
BODY_BYTES = 1024

Send = Callable[[int], Awaitable[object]]


def message() -> definition.Message:
    """A message of 1 KiB."""
    properties = definition.SystemProperties(message_id="0" * 34)
    return definition.Message(
        topic=definition.Resource(name="bench"), body=bytes(BODY_BYTES), system_properties=properties
    )


async def send(call: Call, request: service.SendMessageRequest) -> service.SendMessageResponse:
    """Answer each message with its id."""
    answer = service.SendMessageResponse(status=definition.Status(code=definition.OK))
    for sent in request.messages:
        entry = answer.entries.add()
        entry.message_id = sent.system_properties.message_id
        entry.status.code = definition.OK
    return answer


async def receive(call: Call, stream: Stream[service.ReceiveMessageRequest, bytes]) -> None:
    """Send as many messages as are asked for."""
    request = await stream.receive()
    assert request is not None
    one = service.ReceiveMessageResponse(message=message()).SerializeToString()
    await stream.send([one] * request.batch_size)


async def serve(transport: str) -> None:
    """Serve until the process is stopped; print the port."""
    bench = Service()
    bench.unary(SEND, send)
    bench.stream(RECEIVE, receive)
    if transport == "grpcio":
        from popwheel_rpc.server.grpcio_server import GrpcioServer

        server: object = GrpcioServer(bench)
    else:
        from popwheel_rpc.server.server import Server

        server = Server(bench)
    await server.start("127.0.0.1", 0)  # type: ignore[attr-defined]
    print(server.port, flush=True)  # type: ignore[attr-defined]
    await asyncio.Event().wait()


def cpu_s(process_id: int) -> float:
    """CPU seconds, user and system, that a process has used."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(process_id: int, callers: int, calls: int, one: Send) -> tuple[float, float]:
    """Server CPU in microseconds per call, and calls per second."""

    async def caller(number: int) -> None:
        for _ in range(calls // callers):
            await one(number % CONNECTIONS)

    before = cpu_s(process_id)
    began = time.perf_counter()
    await asyncio.gather(*[caller(number) for number in range(callers)])
    seconds = time.perf_counter() - began
    return (cpu_s(process_id) - before) / calls * 1e6, calls / seconds


async def load(port: int, process_id: int, calls: int) -> dict[str, tuple[float, float]]:
    """Measure all kinds of calls against a server."""
    import grpc

    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(CONNECTIONS)
    ]
    sends = [channel.unary_unary(SEND.path, SEND.request.encode, SEND.response.decode) for channel in channels]
    receives = [channel.unary_stream(RECEIVE.path, RECEIVE.request.encode) for channel in channels]
    single = service.SendMessageRequest(messages=[message()])
    batch = service.SendMessageRequest(messages=[message()] * 32)
    wanted = service.ReceiveMessageRequest(batch_size=32)

    async def take(number: int) -> None:
        async for _ in receives[number](wanted):
            pass

    await measure(process_id, 64, 640, lambda number: sends[number](single))
    results = {
        "send 1 KiB, 1 caller": await measure(process_id, 1, calls // 8, lambda number: sends[number](single)),
        "send 1 KiB, 64 callers": await measure(process_id, 64, calls, lambda number: sends[number](single)),
        "send of 32, 16 callers": await measure(process_id, 16, calls // 8, lambda number: sends[number](batch)),
        "receive of 32, 16 callers": await measure(process_id, 16, calls // 10, take),
    }
    for channel in channels:
        await channel.close()
    return results


def one_round(transport: str, calls: int) -> dict[str, tuple[float, float]]:
    """Start a server of its own, load it, end it."""
    command = [sys.executable, __file__, "--serve", transport]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            return asyncio.run(load(int(process.stdout.readline()), process.pid, calls))
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="single sends of 64 callers; the rest in proportion")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=["popwheel", "grpcio"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return
    rounds = {
        transport: [one_round(transport, options.calls) for _ in range(options.rounds)]
        for transport in ("popwheel", "grpcio")
    }
    print(f"{'server CPU per call, us':28s} {'popwheel':>9s} {'grpcio':>9s} {'ratio':>6s}   calls/s")
    for name in rounds["popwheel"][0]:
        ours, theirs = (
            statistics.median(one[name][0] for one in rounds[transport]) for transport in ("popwheel", "grpcio")
        )
        rate = statistics.median(one[name][1] for one in rounds["popwheel"])
        print(f"{name:28s} {ours:9.1f} {theirs:9.1f} {theirs / ours:6.1f}   {rate:.0f}")


if __name__ == "__main__":
    main()
