"""Routes of the admin API about the dead letters of a group at all brokers: listed, chosen to come again, exported
(docs/use/retries.md). What is asked of one broker is in consumption_routes.py.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from popwheel_common.clock import Clock
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1 import broker_pb2 as pb
from popwheel_common.web.routes import Routes
from popwheel_controller.http.bodies import BODY_BYTES_MAX, body_fields
from popwheel_controller.http.broker_pages import After, ask_in_order
from popwheel_controller.http.consumption_routes import DeadLetter, ShownDeadLetter, letter_fields
from popwheel_controller.http.guard import SeesData, without_data
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.path_parts import GroupName
from popwheel_controller.http.quarantine_routes import message_fields, message_of
from popwheel_controller.http.refusal import refusal
from popwheel_rpc.methods import DEAD_LETTER_LIST, DEAD_LETTER_SELECT

_LISTED: Final = 100
_LISTED_MAX: Final = 1_000
_CHOSEN_MAX: Final = 100
_EXPORTED_BYTES_MAX: Final = 8 << 20
"""Size of an export after which no further letters are read."""
_OFFSET_MAX: Final = 2**62
_DIGITS_MAX: Final = 18
_GONE: Final = "it is no dead letter (any more): it was redriven, purged or moved; ask for the list"
_TOO_FAR: Final = (
    "a thousand dead letters or more stand before it at its broker: redrive or purge the oldest, or choose among them"
)
_REFUSED: dict[int | str, dict[str, Any]] = {
    400: refusal("Invalid `after`."),
    404: refusal("No such group."),
}


class DeadLetters(BaseModel):
    """Page of dead letters of a group, by broker, the oldest first. A page may be empty although more follow."""

    letters: list[DeadLetter] = Field(description="With the first KiB of each body.")
    total: int = Field(description="How many there are at the brokers that answered.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")
    next: str | None = Field(description="Value of `after` for the next page; null at the end.")


class ChosenLetter(BaseModel, extra="forbid"):
    """A dead letter."""

    broker: str = Field(description="Name of the broker group.")
    queue_offset: int = Field(ge=0, le=_OFFSET_MAX, description="Offset in the dead letter queue.")


class ChoiceWanted(BaseModel, extra="forbid"):
    """Dead letters that are to come again. Of many, the smallest offsets of each broker go first."""

    letters: list[ChosenLetter] = Field(
        min_length=1, max_length=_CHOSEN_MAX, description="The dead letters to redrive."
    )
    dry_run: bool = Field(default=False, description="Change nothing, say what would be done.")


class RefusedLetter(ChosenLetter):
    """A dead letter that was not redriven."""

    reason: str = Field(description="Why it was not redriven, in a sentence.")


class ChosenRedriven(BaseModel):
    """Result of a redrive of chosen messages, or of its dry run."""

    redriven: int = Field(description="Number of redriven messages.")
    kept: int = Field(description="Still dead letters, at the end: their topic is gone, or they cannot be read.")
    moved: int = Field(description="Others that stood before a chosen one, and stand at the end now, as if new.")
    refused: list[RefusedLetter] = Field(description="Dead letters that were not redriven.")


def dead_letter_router(inquiry: Inquiry, clock: Clock) -> Routes:
    """Return the routes. They go before those of one broker, whose name `export` could be.

    Args:
        inquiry: asks the brokers.
        clock: limits the time for a page.
    """
    router = Routes(prefix="/groups/{name}/dead-letters", tags=["groups"])

    @router.get("", responses=_REFUSED)
    async def list_all_dead_letters(
        sees_data: SeesData,
        name: GroupName,
        broker: str = Query(default="", description="At this broker alone."),
        after: After = "",
        limit: Annotated[int, Query(ge=1, le=_LISTED_MAX, description="Maximum number of entries.")] = _LISTED,
    ) -> DeadLetters:
        """List the dead letters of a group at all brokers, the oldest of each broker first."""
        inquiry.state.group(name)
        found: list[DeadLetter] = []

        async def step(at: str, begin: str) -> tuple[str, bool]:
            answer = await inquiry.of(at, DEAD_LETTER_LIST, _list_request(name, begin, limit - len(found)))
            letters = [letter_fields(at, message_of(each)) for each in answer.messages]
            found.extend(DeadLetter.model_validate(each if sees_data else without_data(each)) for each in letters)
            return _rest(answer), len(found) >= limit

        unanswered, rest = await ask_in_order(inquiry, clock, broker, after, step)
        asked = [broker] if broker else inquiry.state.brokers
        counts = await inquiry.ask_by_broker(DEAD_LETTER_LIST, dict.fromkeys(asked, _list_request(name, "", 1)))
        silent = {each.broker: each for each in (*counts.unanswered, *unanswered)}
        return DeadLetters(
            letters=found,
            total=sum(each.total for each in counts.given.values()),
            unanswered=list(silent.values()),
            next=rest,
        )

    @router.get(
        "/export",
        responses={**_REFUSED, 200: {"content": {"application/x-ndjson": {}}}},
        response_class=StreamingResponse,
    )
    async def export_dead_letters(
        sees_data: SeesData,
        name: GroupName,
        broker: str = Query(default="", description="At this broker alone."),
        after: After = "",
        limit: Annotated[int, Query(ge=1, le=_LISTED_MAX, description="Maximum number of entries.")] = _LISTED_MAX,
    ) -> StreamingResponse:
        """Export dead letters with whole bodies, one JSON object a line.

        The last line is no dead letter: it has `next`, the `after` of the next request, and `unanswered`.
        """
        inquiry.state.group(name)
        found: list[tuple[str, bytes]] = []
        size = 0

        async def step(at: str, begin: str) -> tuple[str, bool]:
            nonlocal size
            answer = await inquiry.of(at, DEAD_LETTER_LIST, _list_request(name, begin, limit - len(found)))
            found.extend((at, each) for each in answer.messages)
            size += sum(map(len, answer.messages))
            return _rest(answer), len(found) >= limit or size >= _EXPORTED_BYTES_MAX

        unanswered, rest = await ask_in_order(inquiry, clock, broker, after, step)

        async def lines() -> AsyncIterator[str]:
            for at, data in found:
                yield f"{_exported(at, data, sees_data=sees_data).model_dump_json()}\n"
            yield f"{ExportEnd(next=rest, unanswered=unanswered).model_dump_json()}\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @router.post("/redrive", responses=_REFUSED)
    async def redrive_chosen_dead_letters(wanted: ChoiceWanted, name: GroupName) -> ChosenRedriven:
        """Redrive chosen dead letters: each is delivered to its group as a first attempt; other groups get nothing."""
        inquiry.state.group(name)
        offsets: dict[str, list[int]] = defaultdict(list)
        for letter in wanted.letters:
            offsets[letter.broker].append(letter.queue_offset)
        requests = {
            at: pb.DeadLetterSelectRequest(group=name, offsets=each, dry_run=wanted.dry_run)
            for at, each in offsets.items()
        }
        answers = await inquiry.ask_by_broker(DEAD_LETTER_SELECT, requests)
        reasons = [(at, offset, _GONE) for at, each in answers.given.items() for offset in each.gone]
        reasons += [(at, offset, _TOO_FAR) for at, each in answers.given.items() for offset in each.too_far]
        reasons += [
            (each.broker, offset, each.reason) for each in answers.unanswered for offset in offsets[each.broker]
        ]
        return ChosenRedriven(
            redriven=sum(each.redriven for each in answers.given.values()),
            kept=sum(each.kept for each in answers.given.values()),
            moved=sum(each.moved for each in answers.given.values()),
            refused=[RefusedLetter(broker=at, queue_offset=offset, reason=why) for at, offset, why in reasons],
        )

    return router


class ExportEnd(BaseModel):
    """The last line of an export."""

    next: str | None = Field(description="`after` of the next request; null at the end.")
    unanswered: list[Silence] = Field(description="Brokers that did not answer; what they know is missing.")


def _list_request(group: str, begin: str, limit: int) -> pb.DeadLetterListRequest:
    """The question of a broker's list. Raises StatusError: it does not go on there."""
    if begin and (len(begin) > _DIGITS_MAX or not begin.isdecimal()):
        raise StatusError(Code.BAD_REQUEST, "after: this is no place; give what the page before has as `next`")
    return pb.DeadLetterListRequest(group=group, begin_offset=int(begin or 0), limit=limit)


def _rest(answer: pb.DeadLetterListResponse) -> str:
    """Return where a broker's list continues; empty at its end."""
    return str(answer.next_offset) if answer.next_offset < answer.max_offset else ""


def _exported(broker: str, data: bytes, *, sees_data: bool) -> ShownDeadLetter:
    """A dead letter with all of its body."""
    message = message_of(data)
    fields = letter_fields(broker, message) | message_fields(message)
    if len(message.body) > BODY_BYTES_MAX:
        fields |= body_fields(message.body, len(message.body))
    return ShownDeadLetter.model_validate(fields if sees_data else without_data(fields))
