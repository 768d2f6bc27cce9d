"""Request of a browser as a page sees it: its parameters, and the API."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from popwheel_console.answer import PENDING, Answer, Question
from popwheel_console.api_client import Api

ROWS: Final = 50
"""Number of rows of a list on a page."""
_PARTS_MAX: Final = 12
"""Limit of parts that a page reads of a list: the API may return many, some of them empty."""
_VALUE_LENGTH_MAX: Final = 2_000


class Refused(Exception):  # noqa: N818 - it is a refusal of the API, and has its word
    """Refusal of an answer that a page cannot be shown without."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.why)
        self.answer = answer


class Elsewhere(Exception):  # noqa: N818 - nothing is wrong
    """Redirect: the request has a page of its own, at this address."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.address = address


@dataclass(frozen=True, slots=True)
class Listed:
    """Rows of a list of the API, collected from its parts.

    Args:
        rows: at most as many as a page shows.
        next: value of `after` for the next page; empty at the end.
        unanswered: those that did not answer, in a sentence each.
        first: the first part, with its other fields.
    """

    rows: Sequence[Mapping[str, Any]]
    next: str
    unanswered: Sequence[str]
    first: Answer


@dataclass(frozen=True, slots=True)
class Visit:
    """Request of a page, with the tools to answer it.

    Args:
        api: client of the API.
        now_ms: the time.
        patience_s: time after which the page is shown without the missing answers.
        path: names in the address.
        query: of the address.
        form: fields of the sent form.
    """

    api: Api
    now_ms: int
    patience_s: float
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    def asked_for(self, name: str, allowed: Sequence[str] = ()) -> str:
        """Return a parameter of the address; the first allowed value if it has another."""
        value = self.query.get(name, "")[:_VALUE_LENGTH_MAX]
        return value if not allowed or value in allowed else allowed[0]

    async def ask(self, /, **questions: Question) -> dict[str, Answer]:
        """Ask several questions concurrently; an answer that is late is pending."""
        return await self.together(**questions)

    async def together(self, /, **works: Question | Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """Ask and run several things concurrently. A late result is None, and a late answer PENDING."""
        tasks = {
            name: asyncio.ensure_future(self.api.ask(work) if isinstance(work, Question) else work())
            for name, work in works.items()
        }
        if not tasks:
            return {}
        try:
            await asyncio.wait(tasks.values(), timeout=self.patience_s)
            late = {name: PENDING if isinstance(work, Question) else None for name, work in works.items()}
            return {name: task.result() if task.done() else late[name] for name, task in tasks.items()}
        finally:
            for task in tasks.values():
                task.cancel()

    async def need(self, question: Question) -> Answer:
        """Ask a question that the page cannot be shown without.

        Raises:
            Refused: the API refuses it, or does not answer in time.
        """
        answer = (await self.ask(answer=question))["answer"]
        if not answer.is_good:
            raise Refused(answer)
        return answer

    async def listed(self, question: Question, key: str, limit: int = ROWS, share: float = 0.5) -> Listed:
        """Read parts of a list until a page is full; the page links to the next one.

        Args:
            question: of its first part.
            key: of the rows in the answer.
            limit: maximum number of rows.
            share: share of the visit's patience after which no further part is read.
        """
        rows: list[Mapping[str, Any]] = []
        unanswered: list[str] = []
        after: str | int = question.query.get("after") or ""
        first: Answer | None = None
        last_begin_s = asyncio.get_running_loop().time() + share * self.patience_s
        for _ in range(_PARTS_MAX):
            part = Question(question.path, {**question.query, "after": after, "limit": limit - len(rows)})
            answer = await self.api.ask(part)
            first = first or answer
            if not answer.is_good:
                unanswered.append(answer.why)
                after = ""
                break
            rows += answer.rows(key)
            unanswered += silences(answer)
            after = answer.text("next")
            if not after or len(rows) >= limit or asyncio.get_running_loop().time() > last_begin_s:
                break
        assert first is not None
        return Listed(rows[:limit], str(after), unanswered, first)


def silences(answer: Answer) -> list[str]:
    """Return those that did not answer, with the reason, in a sentence each."""
    found = []
    for each in answer.rows("unanswered"):
        who = each.get("broker") or each.get("proxy") or each.get("process") or "a process"
        found.append(f"{who}: {each.get('reason', '')}")
    return found
