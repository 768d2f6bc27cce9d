"""One request of a browser as a page sees it: what it asks for, and the API that answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from popwheel_console.answer import PENDING, Answer, Question
from popwheel_console.api_client import Api

ROWS: Final = 50
"""Number of rows of a list on a page."""
_PARTS_MAX: Final = 12
"""A list of the API may come in many parts, some of them empty: a page reads as many at the most."""
_VALUE_LENGTH_MAX: Final = 2_000


class Refused(Exception):  # noqa: N818 - it is a refusal of the API, and has its word
    """A page cannot be shown without this answer, and the API has refused it."""

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
        next: what `after` is for those that follow; empty if none do.
        unanswered: who could not be asked, in a sentence each.
        first: the first part, with what else it says.
    """

    rows: Sequence[Mapping[str, Any]]
    next: str
    unanswered: Sequence[str]
    first: Answer


@dataclass(frozen=True, slots=True)
class Visit:
    """Request of a page, with the tools to answer it.

    Args:
        api: answers questions.
        now_ms: the time.
        patience_s: the page is shown without what was not answered by then.
        path: the parts of the address that stand for names.
        query: what the address asks for.
        form: fields of a form that was sent.
    """

    api: Api
    now_ms: int
    patience_s: float
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    def asked_for(self, name: str, allowed: Sequence[str] = ()) -> str:
        """Return the address's value of a name; the first allowed one if it has another."""
        value = self.query.get(name, "")[:_VALUE_LENGTH_MAX]
        return value if not allowed or value in allowed else allowed[0]

    async def ask(self, /, **questions: Question) -> dict[str, Answer]:
        """Ask several questions at once; what is not answered in time is pending."""
        return await self.together(**questions)

    async def together(self, /, **works: Question | Callable[[], Awaitable[Any]]) -> dict[str, Any]:
        """Ask and do several things at once. What is not done in time is None, and of a question PENDING."""
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
        """Ask what the page cannot be without.

        Raises:
            Refused: the API refuses it, or does not answer in time.
        """
        answer = (await self.ask(answer=question))["answer"]
        if not answer.is_good:
            raise Refused(answer)
        return answer

    async def listed(self, question: Question, key: str, limit: int = ROWS, share: float = 0.5) -> Listed:
        """Read parts of a list until a page is full. The page links to where the list goes on.

        Args:
            question: of its first part.
            key: of the rows in the answer.
            limit: as many rows at the most.
            share: no further part is begun after this share of the visit's patience.
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
    """Return who could not be asked, and why: a sentence each."""
    found = []
    for each in answer.rows("unanswered"):
        who = each.get("broker") or each.get("proxy") or each.get("process") or "a process"
        found.append(f"{who}: {each.get('reason', '')}")
    return found
