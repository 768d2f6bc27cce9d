"""Work of a request that is done when its answer is known and before anything of it is sent."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY: Final = "before_answer"

BeforeAnswer = Callable[[int, bytes], Awaitable[None]]
"""Callback with the HTTP status and the body; it raises nothing."""


def before_answer(state: MutableMapping[str, Any], work: BeforeAnswer) -> None:
    """Run work before a request is answered, by the state of the request."""
    state[_KEY] = work


async def call_before_answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call an application; a request that has work to be done is answered after it."""
    state = scope.setdefault("state", {})
    buffered: list[Message] = []

    async def answer(message: Message) -> None:
        if _KEY not in state:
            await send(message)
            return
        buffered.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            body = b"".join(each.get("body", b"") for each in buffered)
            await state.pop(_KEY)(buffered[0]["status"], body)
            for each in buffered:
                await send(each)

    try:
        await app(scope, receive, answer)
    except Exception:
        if _KEY in state:
            await state.pop(_KEY)(500, b"")
        raise
