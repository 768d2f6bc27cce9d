"""Forms that create, change and delete topics and groups; a deletion shows its loss before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from popwheel_console.answer import Answer, Question
from popwheel_console.api_client import part
from popwheel_console.page import Done
from popwheel_console.view.links import link
from popwheel_console.visit import Refused, Visit, silences

Kind = Literal["topics", "groups"]

_DIGITS_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class Deletion:
    """Data of a deletion's form.

    Args:
        kind, name: of the object to delete.
        loss: what would be deleted with it; None: not known.
        why: why not.
        unanswered: who could not be asked.
    """

    kind: Kind
    name: str
    loss: Mapping[str, Any] | None
    why: str
    unanswered: Sequence[str]

    @property
    def noun(self) -> str:
        """Name of the kind, in the singular."""
        return self.kind.removesuffix("s")


def is_wanted(visit: Visit, form: str, field: str) -> bool:
    """Return whether a page shows one of these forms: requested by its address, or sent and refused."""
    return visit.asked_for("do") == form or field in visit.form


def loss_question(kind: Kind, name: str) -> Question:
    """Return the question for a dry run of a deletion."""
    return Question(f"/{kind}/{part(name)}", {"dry_run": "true"}, method="DELETE")


def deletion(kind: Kind, name: str, loss: Answer) -> Deletion:
    """Return the form's data from the answer."""
    return Deletion(kind, name, loss.body if loss.is_good else None, loss.why, silences(loss))


async def delete(visit: Visit, kind: Kind) -> Done:
    """Delete the object of the address, if its name was typed.

    Raises:
        Refused: the name was not typed, or the API refuses.
    """
    name = visit.path["name"]
    if visit.form.get("typed") != name:
        raise Refused(Answer(400, {}, "BAD_REQUEST", f"nothing was deleted: type {name} to delete it"))
    await visit.need(Question(f"/{kind}/{part(name)}", method="DELETE"))
    return Done(link(kind), f"The {kind.removesuffix('s')} {name} was deleted.")


async def make(visit: Visit, kind: Kind, body: Mapping[str, object]) -> Done:
    """Create a topic or a group.

    Args:
        visit: has the form, with the name.
        kind: of the new object.
        body: other fields of the form.

    Raises:
        Refused: the API refuses.
    """
    name = visit.form.get("name", "")
    await visit.need(Question(f"/{kind}", method="POST", body={"name": name, **body}))
    return Done(link(kind, name), f"The {kind.removesuffix('s')} {name} was created.")


async def change(visit: Visit, kind: Kind, body: Mapping[str, object]) -> Done:
    """Change the object of the address.

    Args:
        visit: has the address.
        kind: of the object.
        body: its new settings.

    Raises:
        Refused: the API refuses.
    """
    name = visit.path["name"]
    outcome = await visit.need(Question(f"/{kind}/{part(name)}", method="PATCH", body=body))
    changes = [f"{each['field']} is {each['after']}, was {each['before']}" for each in outcome.rows("changes")]
    return Done(link(kind, name), f"{name}: {'; '.join(changes) or 'nothing was different'}.")


def number(text: str) -> int | str:
    """Return a number; the API refuses invalid ones."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else text


def said(visit: Visit, numbers: Sequence[str], words: Sequence[str] = ()) -> dict[str, object]:
    """Return the fields of a form that are not empty."""
    given = {name: visit.form.get(name, "").strip() for name in (*numbers, *words)}
    return {name: number(value) if name in numbers else value for name, value in given.items() if value}
