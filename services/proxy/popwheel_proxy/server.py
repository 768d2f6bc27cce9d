"""apache.rocketmq.v2.MessagingService: binds calls to handlers; each answer has a status.

Every error becomes the `Status` of an answer; no exception leaves a handler but those that end
a call whose client has gone.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog
from google.protobuf.message import Message

from popwheel_common.errors import StatusError, forget_frames
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Status
from popwheel_proxy.access.access import Access
from popwheel_proxy.access.guarded_stream import GuardedStream
from popwheel_proxy.brokers.context import ProxyContext
from popwheel_proxy.lite.lite_sync import LiteSync
from popwheel_proxy.protocol import client_methods as protocol
from popwheel_proxy.protocol.errors import LimitError
from popwheel_proxy.protocol.statuses import OK, downgrade, for_client, is_old, of_rpc_error
from popwheel_proxy.protocol.turns import Turns
from popwheel_proxy.receive.ack_handler import AckHandler
from popwheel_proxy.receive.offsets import Offsets
from popwheel_proxy.receive.receive_handler import ReceiveHandler
from popwheel_proxy.receive.renewal import Renewal
from popwheel_proxy.send.end_handler import EndHandler
from popwheel_proxy.send.recall_handler import RecallHandler
from popwheel_proxy.send.send_answer import refused_send
from popwheel_proxy.send.send_handler import SendHandler
from popwheel_proxy.session.clients import Clients, foreign_client
from popwheel_proxy.session.resources import check_group_if_said
from popwheel_proxy.session.routes import Routes
from popwheel_proxy.session.telemetry import LITE_CLIENTS, Telemetry
from popwheel_rpc.service import Call, Method, Service, Stream, StreamClosedError
from popwheel_rpc.status import RpcError

Request = TypeVar("Request")
Response = TypeVar("Response", bound=Message)

_OK_CODE = int(Code.OK)

_logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Handlers:
    """Handlers of the calls of the client protocol."""

    routes: Routes
    send: SendHandler
    recall: RecallHandler
    end: EndHandler
    receive: ReceiveHandler
    ack: AckHandler
    offsets: Offsets
    telemetry: Telemetry
    lite_sync: LiteSync


class MessagingServer:
    """The client protocol's service.

    Args:
        context: of the proxy.
        handlers: the handlers of its calls.
        clients: who is alive.
        renewal: releases the messages of push consumers that terminate.
        turns: in which the rules are looked up for large requests.
        access: who may do what; None: all may do everything.
    """

    def __init__(
        self,
        context: ProxyContext,
        handlers: Handlers,
        clients: Clients,
        renewal: Renewal,
        turns: Turns,
        access: Access | None = None,
    ) -> None:
        self._send_handler = handlers.send
        self._receive_handler = handlers.receive
        self._offsets = offsets = handlers.offsets
        self._telemetry = handlers.telemetry
        self._lite_sync = handlers.lite_sync
        routes, ack_handler = handlers.routes, handlers.ack
        self._clients = clients
        self._renewal = renewal
        self._clock = context.clock
        self._metrics = context.metrics
        self._turns = turns
        self._access = access
        self.service = Service()
        self._bind(protocol.QUERY_ROUTE, routes.query_route, pb.QueryRouteResponse)
        self._bind(protocol.QUERY_ASSIGNMENT, routes.query_assignment, pb.QueryAssignmentResponse)
        self.service.unary(protocol.SEND_MESSAGE, self._send)
        self._bind(protocol.RECALL_MESSAGE, handlers.recall.recall, pb.RecallMessageResponse)
        self._bind(protocol.END_TRANSACTION, handlers.end.end, pb.EndTransactionResponse)
        self._bind(protocol.ACK_MESSAGE, ack_handler.ack, pb.AckMessageResponse)
        self._bind(protocol.CHANGE_INVISIBLE_DURATION, ack_handler.change_invisible, pb.ChangeInvisibleDurationResponse)
        self._bind(
            protocol.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
            ack_handler.forward_to_dead_letter_queue,
            pb.ForwardMessageToDeadLetterQueueResponse,
        )
        self._bind(protocol.GET_OFFSET, offsets.get_offset, pb.GetOffsetResponse)
        self._bind(protocol.UPDATE_OFFSET, offsets.update_offset, pb.UpdateOffsetResponse)
        self._bind(protocol.QUERY_OFFSET, offsets.query_offset, pb.QueryOffsetResponse)
        self._bind(protocol.HEARTBEAT, self._heartbeat, pb.HeartbeatResponse)
        self._bind(protocol.NOTIFY_CLIENT_TERMINATION, self._client_terminates, pb.NotifyClientTerminationResponse)
        self._bind(protocol.SYNC_LITE_SUBSCRIPTION, self._sync_lite, pb.SyncLiteSubscriptionResponse)
        self.service.stream(protocol.RECEIVE_MESSAGE, self._receive)
        self.service.stream(protocol.PULL_MESSAGE, self._pull)
        self.service.unary(protocol.PULL_RECORDS, self._pull_records)
        self.service.stream(protocol.TELEMETRY, self._open_telemetry)

    def _bind(
        self,
        method: Method[Any, Any],
        handler: Callable[[Call, Any], Awaitable[Response]],
        response_type: type[Response],
    ) -> None:
        """Serve a unary method: time it, and convert errors to the status of the answer."""
        name = method.name
        if self._access is not None:
            handler = _checked(self._access, name, handler)
        monotonic = self._clock.monotonic
        observe = self._metrics.latency.observe

        async def answer(call: Call, request: Any) -> Response:
            began = monotonic()
            try:
                client_id_of(call)
                if isinstance(request, protocol.TooLarge):
                    raise request.refusal
                response = await handler(call, request)
            except (StatusError, RpcError) as error:
                response = response_type()
                response.status.CopyFrom(self._refusal(error))  # type: ignore[attr-defined]
            except Exception:
                _logger.exception("a call failed unexpectedly", method=name, peer=call.peer)
                response = response_type()
                response.status.CopyFrom(_UNEXPECTED)  # type: ignore[attr-defined]
            code: int = response.status.code  # type: ignore[attr-defined]
            if code != _OK_CODE and is_old(call.metadata):
                downgrade(response)
            observe(name, code, (monotonic() - began) * 1000)
            return response

        self.service.unary(method, answer)

    async def _send(self, call: Call, request: bytes) -> bytes:
        """Serve SendMessage; each message's topic must be one that the caller may publish to."""
        began = self._clock.monotonic()
        try:
            client_id = client_id_of(call)
            access = self._access
            if access is None:
                answer = await self._send_handler.send(call, request)
            else:
                caller = access.caller_of(call, protocol.SEND_MESSAGE.name, client_id)
                answer = await self._send_handler.send(call, request, partial(access.check, caller))
        except (StatusError, RpcError) as error:
            answer = refused_send(self._refusal(error))
        except Exception:
            _logger.exception("a call failed unexpectedly", method=protocol.SEND_MESSAGE.name, peer=call.peer)
            answer = refused_send(_UNEXPECTED)
        code: int = answer.status.code
        encoded = answer.encoded
        if code != _OK_CODE and is_old(call.metadata):
            response = pb.SendMessageResponse.FromString(encoded)
            downgrade(response)
            encoded = response.SerializeToString()
        self._metrics.latency.observe(protocol.SEND_MESSAGE.name, code, (self._clock.monotonic() - began) * 1000)
        return encoded

    async def send_as_operator(self, request: bytes, timeout_s: float, peer: str) -> bytes:
        """Serve a SendMessage that the controller forwards for an operator, whom it has authorized.

        Args:
            request: a client's request.
            timeout_s: limit of the wait.
            peer: address of the operator.
        """
        began = self._clock.monotonic()
        call = Call(protocol.SEND_MESSAGE.path, {}, began + timeout_s, peer)
        try:
            answer = await self._send_handler.send(call, request)
        except (StatusError, RpcError) as error:
            answer = refused_send(self._refusal(error))
        self._metrics.latency.observe(
            protocol.SEND_MESSAGE.name, answer.status.code, (self._clock.monotonic() - began) * 1000
        )
        return answer.encoded

    def _user(self, call: Call, method: Method[Any, Any], client_id: str) -> str:
        """Return the user of an accepted call; empty if access is not checked.

        Raises:
            StatusError: FORBIDDEN, the client id is in use by another user.
        """
        if self._access is None:
            return ""
        user, owner = self._access.user_of(call), self._clients.user_of(client_id)
        if owner is not None and owner != user:
            if self._access.has_user(owner):
                self._access.deny_client(call, method.name, client_id)
                raise foreign_client()
            self._end_client(client_id)  # the user was removed
        return user

    def _end_client(self, client_id: str) -> None:
        """End a client: its messages are released for others."""
        self._clients.remove(client_id)
        self._lite_sync.client_ends(client_id)
        self._receive_handler.client_ends(client_id)
        self._renewal.release(client_id, is_goodbye=True)

    def _guarded(
        self, call: Call, client_id: str, method: Method[Any, Any], stream: Stream[Any, Any]
    ) -> Stream[Any, Any]:
        """Return the stream, with each message checked if access is; raises StatusError for an unknown caller."""
        access = self._access
        if access is None:
            return stream
        return GuardedStream(stream, access, access.caller_of(call, method.name, client_id), self._turns)

    async def _receive(self, call: Call, stream: Stream[pb.ReceiveMessageRequest, bytes]) -> None:
        async def receive() -> None:
            client_id = client_id_of(call)
            guarded = self._guarded(call, client_id, protocol.RECEIVE_MESSAGE, stream)
            user = self._user(call, protocol.RECEIVE_MESSAGE, client_id)
            await self._receive_handler.receive(call, client_id, guarded, user)

        await self._stream_answer(call, stream, "ReceiveMessage", receive)

    async def _pull(self, call: Call, stream: Stream[pb.PullMessageRequest, bytes]) -> None:
        async def pull() -> None:
            client_id = client_id_of(call)
            guarded = self._guarded(call, client_id, protocol.PULL_MESSAGE, stream)
            self._user(call, protocol.PULL_MESSAGE, client_id)
            await self._offsets.pull(call, client_id, guarded, self._clock.monotonic())

        await self._stream_answer(call, stream, "PullMessage", pull)

    async def _pull_records(self, call: Call, request: pb.PullMessageRequest) -> bytes:
        """Serve a pull that has no status in its answer; errors go into its trailers."""
        began = self._clock.monotonic()
        given, answer = OK, b""
        try:
            client_id = client_id_of(call)
            if isinstance(request, protocol.TooLarge):
                raise request.refusal
            caller = None
            if self._access is not None:
                caller = self._access.caller_of(call, protocol.PULL_RECORDS.name, client_id)
                self._access.check(caller, request)
            self._user(call, protocol.PULL_RECORDS, client_id)
            answer = await self._offsets.pull_records(call, client_id, request, began)
            if self._access is not None and caller is not None:
                self._access.check_again(caller)  # it may have waited
        except (StatusError, RpcError) as error:
            given = self._refusal(error)
        except Exception:
            _logger.exception("a call failed unexpectedly", method="PullRecords", peer=call.peer)
            given = _UNEXPECTED
        self._metrics.latency.observe("PullRecords", given.code, (self._clock.monotonic() - began) * 1000)
        if given is not OK:
            raise StatusError(given.code, given.message)
        return answer

    async def _stream_answer(
        self, call: Call, stream: Stream[Any, bytes], name: str, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve a stream that is answered at the end; an error becomes its one message, a status."""
        began = self._clock.monotonic()
        given = OK
        try:
            try:
                await work()
            except (StatusError, RpcError) as error:
                given = self._refusal(error)
            except StreamClosedError:
                raise
            except Exception:
                _logger.exception("a call failed unexpectedly", method=name, peer=call.peer)
                given = _UNEXPECTED
            if given is not OK:
                # Field 1 of both ReceiveMessageResponse and PullMessageResponse.
                response = pb.ReceiveMessageResponse(status=for_client(call.metadata, given))
                await stream.send((response.SerializeToString(),))
        except StreamClosedError:
            pass  # nobody is left to be answered
        self._metrics.latency.observe(name, given.code, (self._clock.monotonic() - began) * 1000)

    async def _open_telemetry(self, call: Call, stream: Stream[pb.TelemetryCommand, pb.TelemetryCommand]) -> None:
        client_id = ""
        try:
            client_id = client_id_of(call)
            if self._access is None:
                await self._telemetry.telemetry(call, client_id, stream)
                return
            caller = self._access.caller_of(call, protocol.TELEMETRY.name, client_id)
            user = self._user(call, protocol.TELEMETRY, client_id)
            guarded = GuardedStream(stream, self._access, caller, self._turns, lasting=True)
            may_publish = partial(self._access.may_publish, caller)
            await self._telemetry.telemetry(call, client_id, guarded, user, may_publish)
            return
        except StatusError as error:
            refused = error
        refusal = for_client(call.metadata, self._refusal(refused))
        await stream.send((pb.TelemetryCommand(status=refusal),))
        if client_id:
            raise refused  # and end the stream with it: only that is noticed by all official clients while they start

    def _refusal(self, error: StatusError | RpcError) -> Status:
        """Return the client's status; an exceeded limit is counted."""
        forget_frames(error)
        if isinstance(error, LimitError):
            self._metrics.limit_hit(error.limit)
        refused = error if isinstance(error, StatusError) else of_rpc_error(error, "another service")
        return Status(code=refused.code, message=refused.message)

    async def _heartbeat(self, call: Call, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        check_group_if_said(request.group)
        client_id = client_id_of(call)
        self._clients.seen(client_id, self._clock.monotonic(), self._user(call, protocol.HEARTBEAT, client_id))
        if request.client_type:
            self._clients.is_of(client_id, lite=request.client_type in LITE_CLIENTS)
        return pb.HeartbeatResponse(status=OK)

    async def _sync_lite(self, call: Call, request: pb.SyncLiteSubscriptionRequest) -> pb.SyncLiteSubscriptionResponse:
        client_id = client_id_of(call)
        user = self._user(call, protocol.SYNC_LITE_SUBSCRIPTION, client_id)
        return await self._lite_sync.sync(call, client_id, request, user)

    async def _client_terminates(
        self, call: Call, request: pb.NotifyClientTerminationRequest
    ) -> pb.NotifyClientTerminationResponse:
        check_group_if_said(request.group)
        client_id = client_id_of(call)
        self._user(call, protocol.NOTIFY_CLIENT_TERMINATION, client_id)
        self._end_client(client_id)
        return pb.NotifyClientTerminationResponse(status=OK)


_UNEXPECTED = Status(
    code=Code.INTERNAL_SERVER_ERROR, message="the proxy failed unexpectedly; its log says why. Try again"
)


def client_id_of(call: Call) -> str:
    """Return the client id of a call.

    Raises:
        StatusError: CLIENT_ID_REQUIRED.
    """
    client_id = call.metadata.get("x-mq-client-id", "")
    if not client_id or len(client_id) > 1024:
        raise StatusError(Code.CLIENT_ID_REQUIRED, "the call has no header x-mq-client-id, or one that is too long")
    return client_id


def _checked(
    access: Access, name: str, handler: Callable[[Call, Any], Awaitable[Response]]
) -> Callable[[Call, Any], Awaitable[Response]]:
    """Return a handler that checks its callers' requests."""

    async def handle(call: Call, request: Any) -> Response:
        access.check(access.caller_of(call, name, client_id_of(call)), request)
        return await handler(call, request)

    return handle
