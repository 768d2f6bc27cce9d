"""Messages that the controller has a proxy send for operators: checked as those of clients, by nobody's rules."""

from pathlib import Path

from popwheel_cli.process.inspected import answer_to
from popwheel_common.pb.apache.rocketmq.v2 import service_pb2 as pb
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code, Message
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectQuestion, SendQuestion
from tests.unit.proxy.test_access import guarded
from tests.unit.proxy.world import World, message, world


async def send(w: World, *messages: Message, peer: str = "10.0.0.7") -> pb.SendMessageResponse:
    request = pb.SendMessageRequest(messages=messages).SerializeToString()
    question = InspectQuestion(send=SendQuestion(request=request, timeout_ms=2_000, peer=peer))
    answer = await answer_to(question, {}, w.app)
    assert not answer.trouble
    return pb.SendMessageResponse.FromString(answer.sent)


async def test_one_is_stored_and_counted() -> None:
    async with world() as w:
        answer = await send(w, message())
        assert (answer.status.code, len(answer.entries)) == (Code.OK, 1)
        assert len(w.broker.asked("Put")) == 1


async def test_it_needs_no_user_of_the_access_file(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (w, _):
        assert (await w.send(message())).status.code == Code.UNAUTHORIZED
        assert (await send(w, message())).status.code == Code.OK


async def test_a_rule_that_is_broken_comes_back() -> None:
    async with world(message={"body_bytes_max": 2_000}) as w:
        answer = await send(w, message(body=b"x" * 2_001))
        assert answer.status.code == Code.MESSAGE_BODY_TOO_LARGE
        assert "2001" in answer.status.message
        assert (await send(w)).status.code == Code.BAD_REQUEST
        assert w.broker.asked("Put") == []


async def test_a_process_that_is_no_proxy_says_so() -> None:
    answer = await answer_to(InspectQuestion(send=SendQuestion()), {}, None)
    assert "no proxy" in answer.trouble
