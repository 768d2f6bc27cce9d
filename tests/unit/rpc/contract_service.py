"""A service that does one of everything, for all that carries calls."""

import asyncio

from popwheel_common.errors import NotLeadingError, StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import GetOffsetRequest
from popwheel_rpc.service import RAW, Call, Method, Service, Stream, StreamClosedError, protobuf
from popwheel_rpc.status import GrpcStatus, RpcError


def _raw(name: str) -> Method[bytes, bytes]:
    return Method("test.Contract", name, RAW, RAW)


ECHO = _raw("Echo")
METADATA = _raw("Metadata")
WAIT = _raw("Wait")
REFUSE = _raw("Refuse")
UNREACHABLE = _raw("Unreachable")
FAIL = _raw("Fail")
CHAT = _raw("Chat")
REPEAT = _raw("Repeat")
REFUSE_STREAM = _raw("RefuseStream")
LISTEN = _raw("Listen")
MISSING = _raw("Missing")
TYPED = Method("test.Contract", "Typed", protobuf(GetOffsetRequest), protobuf(GetOffsetRequest))
WRONGLY_TYPED = Method("test.Contract", "Typed", RAW, RAW)


class ContractService:
    """Handlers, and what they have seen."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.released = asyncio.Event()
        self.sent = 0
        self.service = Service()
        for method, handler in (
            (ECHO, self.echo),
            (METADATA, self.metadata),
            (WAIT, self.wait),
            (REFUSE, self.refuse),
            (UNREACHABLE, self.unreachable),
            (FAIL, self.fail),
        ):
            self.service.unary(method, handler)
        self.service.unary(TYPED, self.typed)
        for method, stream_handler in (
            (CHAT, self.chat),
            (REPEAT, self.repeat),
            (REFUSE_STREAM, self.refuse_stream),
            (LISTEN, self.listen),
        ):
            self.service.stream(method, stream_handler)

    async def echo(self, call: Call, request: bytes) -> bytes:
        """The request, without ever waiting."""
        return request

    async def typed(self, call: Call, request: GetOffsetRequest) -> GetOffsetRequest:
        """The request, a protobuf message."""
        return request

    async def metadata(self, call: Call, request: bytes) -> bytes:
        """The value of the header of this name."""
        self.calls.append(call)
        return call.metadata.get(request.decode(), "").encode()

    async def wait(self, call: Call, request: bytes) -> bytes:
        """Wait until the test lets go, in the ways handlers wait."""
        self.calls.append(call)
        self.waiting.set()
        try:
            async with asyncio.timeout(60):
                await asyncio.wait_for(self.released.wait(), 60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await asyncio.sleep(0)
        return request

    async def refuse(self, call: Call, request: bytes) -> bytes:
        """Refuse with a status of the protocol; whoever asks `who leads` is told that it is not this one."""
        if request == b"who leads":
            raise NotLeadingError("not I")
        raise StatusError(Code.TOPIC_NOT_FOUND, "there is no topic “naïve” (100%)")

    async def unreachable(self, call: Call, request: bytes) -> bytes:
        """Pass on a failure of a call of its own."""
        await asyncio.sleep(0)
        raise RpcError(GrpcStatus.UNAVAILABLE, "the broker is away")

    async def fail(self, call: Call, request: bytes) -> bytes:
        """Have a bug."""
        raise LookupError("a bug")

    async def chat(self, call: Call, stream: Stream[bytes, bytes]) -> None:
        """Answer every message twice."""
        while (message := await stream.receive()) is not None:
            await stream.send([message, message.upper()])

    async def repeat(self, call: Call, stream: Stream[bytes, bytes]) -> None:
        """Send messages without end, as quickly as they are taken."""
        message = await stream.receive()
        assert message is not None
        self.waiting.set()
        try:
            while True:
                await stream.send([message])
                self.sent += 1
        except (StreamClosedError, asyncio.CancelledError):
            self.cancelled.set()
            raise

    async def refuse_stream(self, call: Call, stream: Stream[bytes, bytes]) -> None:
        """Send one message, then refuse."""
        await stream.send([b"one"])
        raise StatusError(Code.ILLEGAL_TOPIC, "not this one")

    async def listen(self, call: Call, stream: Stream[bytes, bytes]) -> None:
        """Wait for messages and say nothing."""
        self.waiting.set()
        try:
            while await stream.receive() is not None:
                pass
        except (StreamClosedError, asyncio.CancelledError):
            self.cancelled.set()
            raise
