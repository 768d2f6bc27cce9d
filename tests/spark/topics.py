"""Makes topics and fills them, and says of each message what Spark is to read."""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from tests.harness.client import MessagingClient, make_message
from tests.harness.standalone import StandaloneProcess

_BATCH = 64
_AT_ONCE = 8


class Topics:
    """Of one server. Use as a context manager.

    Args:
        address: of a proxy.
        admin: base URL of the admin API.
    """

    def __init__(self, address: str, admin: str) -> None:
        self.address = address
        self.admin = admin
        self._runner = asyncio.Runner()
        self._client: MessagingClient | None = None

    @property
    def options(self) -> dict[str, str]:
        """How Spark reaches the server."""
        return {"endpoints": self.address, "admin": self.admin}

    def make(self, name: str, queues: int = 4, kind: str = "NORMAL") -> str:
        """Make a topic; its name."""
        self._post("topics", {"name": name, "type": kind, "queues": queues})
        return name

    def make_group(self, name: str, **settings: object) -> str:
        """Make a consumer group; its name.

        Args:
            name: of it.
            settings: as the admin API has them.
        """
        self._post("groups", {"name": name, **settings})
        return name

    def _post(self, path: str, thing: Mapping[str, object]) -> None:
        headers = {"content-type": "application/json"}
        url = f"{self.admin}/api/v1/{path}"
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(thing).encode(), headers)):
            pass

    def delete(self, name: str) -> None:
        """Delete a topic."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.admin}/api/v1/topics/{name}", method="DELETE")):
            pass

    def fill_singly(self, topic: str, count: int) -> set[str]:
        """Send messages in a request each, so that they go round all queues; their ids."""
        return self.fill(topic, count, batch=1)

    def fill(
        self, topic: str, count: int, change: Callable[[Message, int], None] | None = None, batch: int = _BATCH
    ) -> set[str]:
        """Send messages; their ids.

        Args:
            topic: where to.
            count: how many.
            change: of each message before it is sent, with its number.
            batch: how many go in a request.
        """
        messages = []
        for number in range(count):
            messages.append(make_message(topic, b"%08d" % number))
            if change is not None:
                change(messages[-1], number)
        self._runner.run(self._send(messages, batch))
        return {message.system_properties.message_id for message in messages}

    async def _send(self, messages: list[Message], batch: int) -> None:
        if self._client is None:
            self._client = MessagingClient(self.address)
        client = self._client
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def send(some: Iterable[Message]) -> None:
            async with at_once:
                answer = await client.send_messages(*some, timeout_s=60)
                assert answer.status.code == Code.OK, answer.status

        async with asyncio.TaskGroup() as group:
            for at in range(0, len(messages), batch):
                group.create_task(send(messages[at : at + batch]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._runner.run(self._client.close())
        self._runner.close()


@contextmanager
def own_topics(folder: Path, *settings: str) -> Iterator[Topics]:
    """Topics of a server of their own.

    Args:
        folder: of the server.
        settings: of it, as `broker.flush=async`.
    """
    words = [word for setting in settings for word in ("--set", setting)]
    with (
        StandaloneProcess(folder / "data", words) as server,
        Topics(server.grpc_address, server.http_url) as topics,
    ):
        yield topics
