"""How the admin API names the brokers that did not answer it."""

from typing import Any

from pydantic import BaseModel

from services.controller.inquiry import Answers


class Silence(BaseModel):
    """A broker that did not answer: what it knows is missing."""

    broker: str
    reason: str


def silences(answers: Answers[Any]) -> list[Silence]:
    """Those brokers, in the order of their names."""
    return [Silence(broker=name, reason=reason) for name, reason in answers.missing.items()]
