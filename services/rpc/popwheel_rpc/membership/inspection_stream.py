"""Inspections of this process by the controller, for operators.

The process opens the stream, so the controller needs no address of it, and no port is open to others.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from popwheel_common.errors import InconsistentClusterIdError, StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectAnswer, InspectQuestion, WatchRequest
from popwheel_rpc.backoff import OTHER_CLUSTER_S, Backoff
from popwheel_rpc.methods import INSPECT
from popwheel_rpc.service import Channel, ClientStream, StreamClosedError
from popwheel_rpc.status import GrpcStatus, RpcError

_OLD_CONTROLLER_S: Final = 60.0
"""Pause before the next try at a controller of an older release."""

_logger = structlog.get_logger()


class InspectionStream:
    """Stream of the controller's inspections; it is opened again, for ever, when it ends.

    Args:
        channel: to the controller.
        process: who this is.
        pages: names of the pages that it has.
        answer: answers one question.
        cluster_id: the cluster that it belongs to, as far as it knows.
        random_source: when it is tried again.
    """

    def __init__(
        self,
        channel: Channel,
        process: WatchRequest,
        pages: Sequence[str],
        answer: Callable[[InspectQuestion], Awaitable[InspectAnswer]],
        cluster_id: Callable[[], str],
        random_source: random.Random,
    ) -> None:
        self._channel = channel
        self._process = process
        self._pages = pages
        self._answer = answer
        self._cluster_id = cluster_id
        self._random = random_source
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start answering; returns at once."""
        self._task = asyncio.create_task(self._run(), name="inspection")

    async def stop(self) -> None:
        """Stop answering."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        backoff = Backoff(self._random)
        while True:
            wait_s = backoff.next_s()
            try:
                await self._serve()
            except RpcError as error:
                if error.status is GrpcStatus.UNIMPLEMENTED:
                    wait_s = _OLD_CONTROLLER_S
            except InconsistentClusterIdError:
                wait_s = OTHER_CLUSTER_S  # the follower logs it
            except (StatusError, StreamClosedError):
                pass  # the stream is opened anew, perhaps at another controller
            await asyncio.sleep(wait_s)

    async def _serve(self) -> None:
        """Answer the questions of one stream until it ends."""
        stream = self._channel.open(INSPECT)
        answers: set[asyncio.Task[None]] = set()
        try:
            process = WatchRequest()
            process.CopyFrom(self._process)
            process.cluster_id = self._cluster_id()
            await stream.send([InspectAnswer(process=process, pages=self._pages)])
            while (question := await stream.receive()) is not None:
                task = asyncio.create_task(self._answer_one(stream, question), name="inspection-answer")
                answers.add(task)
                task.add_done_callback(answers.discard)
        finally:
            stream.cancel()
            for task in list(answers):
                task.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    async def _answer_one(
        self, stream: ClientStream[InspectQuestion, InspectAnswer], question: InspectQuestion
    ) -> None:
        try:
            answer = await self._answer(question)
        except Exception as error:
            _logger.exception("an inspection of the controller could not be answered")
            answer = InspectAnswer(trouble=f"it failed at this: {error!r}")
        answer.number = question.number
        with contextlib.suppress(StatusError, RpcError, StreamClosedError):  # whoever receives finds that out, too
            await stream.send([answer])
