"""A client of the protocol as far as a load needs it: known to the server, alive to it, and quick."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Self

from bench import requests
from bench.connection import ConnectionFailedError, LoadConnection
from bench.headers import NOBODY
from popwheel_common.contract.credentials import Credentials
from popwheel_common.pb.apache.rocketmq.v2 import definition_pb2 as definition
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as service
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code

_HEARTBEAT_S = 10.0
_SETTINGS_TIMEOUT_S = 10.0


class CallFailedError(Exception):
    """A call that had to succeed did not."""


class Client:
    """Connection with its client id, its Telemetry stream open and its heartbeats going; made by `connect`."""

    def __init__(self, connection: LoadConnection, address: str, topic: str, group: str) -> None:
        self.connection = connection
        self._address = address
        self._topic = topic
        self._group = group
        self._beat = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._heartbeat)

    @classmethod
    async def connect(cls, address: str, topic: str, group: str = "", credentials: Credentials = NOBODY) -> Self:
        """Connect and make the client known.

        Args:
            address: `host:port` of the server.
            topic: what it will send to or receive from.
            group: of a consumer; "" for a producer.
            credentials: by which it shows who it is.

        Raises:
            ConnectionFailedError: the server is not there.
            CallFailedError: it does not answer with settings.
        """
        connection = await LoadConnection.connect(address, f"bench@{uuid.uuid4()}", credentials)
        client = cls(connection, address, topic, group)
        reported: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_data(data: bytes) -> None:
            if not reported.done():
                reported.set_result(None)

        connection.open(
            requests.TELEMETRY, requests.settings(topic, group, address), on_data, lambda _parts, _error: None
        )
        try:
            async with asyncio.timeout(_SETTINGS_TIMEOUT_S):
                await reported
        except TimeoutError:
            client.close()
            raise CallFailedError("no settings came back on the Telemetry stream") from None
        client._heartbeat()
        return client

    def _heartbeat(self) -> None:
        self._beat.cancel()
        self._beat = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._heartbeat)
        try:
            self.connection.call(requests.HEARTBEAT, requests.heartbeat(self._group), lambda _parts, _error: None)
        except ConnectionFailedError:
            self._beat.cancel()

    def close(self) -> None:
        """Close the connection at once."""
        self._beat.cancel()
        self.connection.close()

    async def call(self, path: bytes, message: bytes) -> list[bytes]:
        """A call whose time does not matter; gives the data of its answer.

        Raises:
            CallFailedError: it failed.
        """
        answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

        def done(parts: list[bytes], error: str) -> None:
            if answer.done():
                return
            if error:
                answer.set_exception(CallFailedError(error))
            else:
                answer.set_result(parts)

        self.connection.call(path, message, done)
        return await answer

    async def send(self, message: bytes) -> None:
        """Send a request of `requests.SendTemplate` or `requests.numbered_send`.

        Raises:
            CallFailedError: it was refused.
        """
        error = requests.refusal(service.SendMessageResponse, await self.call(requests.SEND, message))
        if error:
            raise CallFailedError(error)

    async def queues(self) -> list[definition.MessageQueue]:
        """The queues of the client's topic.

        Raises:
            CallFailedError: there are none.
        """
        parts = await self.call(requests.ROUTE, requests.route(self._topic, self._address))
        for data in requests.split(parts):
            answer = service.QueryRouteResponse.FromString(data)
            if answer.status.code == Code.OK and answer.message_queues:
                return list(answer.message_queues)
            raise CallFailedError(f"no route to {self._topic}: {answer.status.message}")
        raise CallFailedError(f"no route to {self._topic}")


async def connect_all(
    address: str, count: int, topic: str, group: str = "", credentials: Credentials = NOBODY
) -> list[Client]:
    """Several clients, one after the other (arguments as of `Client.connect`)."""
    return [await Client.connect(address, topic, group, credentials) for _ in range(count)]


def close_all(clients: Sequence[Client]) -> None:
    """Close all of these."""
    for client in clients:
        client.close()
