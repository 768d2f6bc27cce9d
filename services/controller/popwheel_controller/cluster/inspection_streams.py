"""Streams on which processes answer operators' questions: `Controller.Inspect`."""

import asyncio
from collections.abc import Callable

from popwheel_common.contract import names
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectAnswer, InspectQuestion
from popwheel_controller.cluster.admission import Admission
from popwheel_controller.cluster.inspections import Inspected, Inspections
from popwheel_rpc.methods import INSPECT
from popwheel_rpc.service import Call, Service, Stream, StreamClosedError

_ADVICE = "nobody asks it for anything here. Give it the addresses of its own cluster's controllers"
_PAGES_MAX = 16


class InspectionStreams:
    """Binds `Controller.Inspect`.

    Args:
        inspections: registry of the processes.
        admission: refuses processes of another cluster.
        check_leads: raises StatusError while this controller does not lead.
        service: that gets the method.
    """

    def __init__(
        self, inspections: Inspections, admission: Admission, check_leads: Callable[[], None], service: Service
    ) -> None:
        self._inspections = inspections
        self._admission = admission
        self._check_leads = check_leads
        service.stream(INSPECT, self._inspect)

    async def _inspect(self, call: Call, stream: Stream[InspectAnswer, InspectQuestion]) -> None:
        first = await stream.receive()
        if first is None or not first.HasField("process"):
            raise StatusError(Code.BAD_REQUEST, "Inspect begins with one InspectAnswer that says who answers")
        names.process(first.process.process)
        self._check_leads()
        self._admission.check(first.process.cluster_id, f"the process {first.process.process}", _ADVICE)
        questions: asyncio.Queue[InspectQuestion | None] = asyncio.Queue()  # bounded by `Inspections.ask`
        inspected = self._inspections.register(first.process, tuple(first.pages[:_PAGES_MAX]), questions.put_nowait)
        receiving = asyncio.create_task(self._receive(inspected, stream), name="inspect-answers")
        receiving.add_done_callback(lambda _: questions.put_nowait(None))
        try:
            while (question := await questions.get()) is not None:
                await stream.send([question])
        except StreamClosedError:
            return
        finally:
            self._inspections.left(inspected)  # first, as a second cancellation would skip it
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _receive(self, inspected: Inspected, stream: Stream[InspectAnswer, InspectQuestion]) -> None:
        while (answer := await stream.receive()) is not None:
            self._inspections.answered(inspected, answer)
