"""A message has rotted in a server that was stopped: `popwheel standalone --skip-record` passes it over."""

import json
from pathlib import Path

from popwheel_broker.log.record import HEADER_BYTES, length_at
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess


def find(data_dir: Path, body: bytes) -> tuple[Path, int, int]:
    """The segment with a body, where its record begins in the log, and where the body is in the segment."""
    for segment in sorted((data_dir / "broker").glob("**/commitlog/*.log")):
        data, begin = segment.read_bytes(), 0
        while begin < len(data):
            length = length_at(data, begin)
            assert length >= HEADER_BYTES
            if (at := data.find(body, begin, begin + length)) >= 0:
                return segment, int(segment.stem) + begin, at
            begin += length
    raise AssertionError(f"no record has {body!r}")


async def test_all_others_come(tmp_path: Path) -> None:
    server = StandaloneProcess(tmp_path / "data")
    with server:
        async with MessagingClient(server.grpc_address) as client:
            for number in range(5):
                assert (await client.send("Rotten", b"body number %d" % number)).status.code == Code.OK
    segment, position, at = find(server.data_dir, b"body number 2")
    data = bytearray(segment.read_bytes())
    data[at] ^= 1
    segment.write_bytes(data)

    server.extra_args = ["--skip-record", str(position)]
    with server:
        async with MessagingClient(server.grpc_address) as client:
            found = await client.receive_all("survivors", "Rotten", 4)
            assert sorted(bodies(found)) == [b"body number %d" % number for number in (0, 1, 3, 4)]
    lines = [json.loads(line) for line in server.log_path.read_text().splitlines() if "was skipped" in line]
    named = [(line["position"], line["topic"]) for line in lines if line["event"].startswith("a damaged record")]
    assert named == [(position, "Rotten")]
