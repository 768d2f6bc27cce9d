"""A server whose log nobody takes: it goes on, counts the lines, and says how many there were (E1)."""

import asyncio
import fcntl
import json
import os
from pathlib import Path

import httpx

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from tests.harness.client import MessagingClient, bodies
from tests.harness.standalone import StandaloneProcess

PIPE_BYTES = 4096
PATIENCE_S = 20.0
DENIALS = 40


class Reader:
    """Reads the log of a server, or hangs, or goes away.

    Args:
        path: where the named pipe is made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        os.mkfifo(path)
        self.open()

    def open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self) -> str:
        """Return what came since."""
        found = b""
        try:
            while more := os.read(self._descriptor, 1 << 16):
                found += more
        except BlockingIOError:
            pass
        return found.decode()


class SilentServer(StandaloneProcess):
    """Its log is a pipe that the test reads."""

    def log_text(self) -> str:
        return ""


async def deny(server: StandaloneProcess) -> None:
    """Make it log some 8 KiB."""
    async with httpx.AsyncClient() as http:
        for _ in range(DENIALS):
            answer = await http.get(f"{server.http_url}/api/v1/{'topics' * 20}", timeout=PATIENCE_S)
            assert answer.status_code == 401


async def lost_lines(server: StandaloneProcess) -> float:
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{server.http_url}/metrics")).text
    return float(
        next(line for line in page.splitlines() if line.startswith("popwheel_log_lost_lines_total ")).split()[1]
    )


async def goes_on(server: StandaloneProcess, body: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S), MessagingClient(server.grpc_address) as client:
        assert (await client.send("Log", body)).status.code == Code.OK
        messages = await client.receive_all("log", "Log", 1)
        assert bodies(messages) == [body]
        assert (await client.ack("log", "Log", messages)).status.code == Code.OK


async def test_a_reader_that_hangs_or_goes_away_stops_nothing(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("t" * 40 + "\n")
    reader = Reader(tmp_path / "log")
    server = SilentServer(tmp_path / "data", ["--set", f"access.token_file={tokens}"], log_path=tmp_path / "log")
    with server:
        await deny(server)
        await goes_on(server, b"its reader hangs")
        assert await lost_lines(server) == 0, "they wait"

        text = ""
        async with asyncio.timeout(PATIENCE_S):
            while text.count("access denied") < 20:
                text += reader.read()
                await asyncio.sleep(0.01)
        assert all(json.loads(line)["event"] for line in text.splitlines()), "each is whole"

        reader.close()
        await deny(server)
        await goes_on(server, b"its reader is gone")
        async with asyncio.timeout(PATIENCE_S):
            while not await lost_lines(server):
                await deny(server)  # of one second's denials some are written only

        reader.open()
        text = ""
        async with asyncio.timeout(PATIENCE_S):
            while "lines of the log were lost" not in text:
                text += reader.read()
                await asyncio.sleep(0.01)
        said = next(json.loads(line) for line in text.splitlines() if "lines of the log were lost" in line)
        assert 0 < said["count"] <= await lost_lines(server)

        await deny(server)
    reader.close()  # only now: the server ended well, and in time, though its reader hung
