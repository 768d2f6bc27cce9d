"""Forms that pause and resume a topic or a group."""

from collections.abc import Awaitable, Callable
from typing import Final

from popwheel_console.answer import Question
from popwheel_console.api_client import part
from popwheel_console.page import Action, Done
from popwheel_console.pages import group, topic
from popwheel_console.view.links import link
from popwheel_console.visit import Visit

_SAID: Final = {
    ("topics", "pause"): "The topic {name} is paused: its messages are not delivered.",
    ("topics", "resume"): "The topic {name} is resumed.",
    ("groups", "pause"): "The group {name} is paused: nothing is delivered to it.",
    ("groups", "resume"): "The group {name} is resumed.",
}


def _work(of: str, verb: str) -> Callable[[Visit], Awaitable[Done]]:
    async def work(visit: Visit) -> Done:
        name = visit.path["name"]
        await visit.need(Question(f"/{of}/{part(name)}/{verb}", method="POST"))
        return Done(link(of, name), _SAID[of, verb].format(name=name))

    return work


ACTIONS: Final = tuple(
    Action(f"/{of}/{{name}}/{verb}", _work(of, verb), page)
    for of, page in (("topics", topic.PAGE), ("groups", group.PAGE))
    for verb in ("pause", "resume")
)
