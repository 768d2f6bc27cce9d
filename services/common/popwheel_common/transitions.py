"""A table of the legal transitions of a state machine: the machine goes by it, and a README prints it (`make docs`)."""

from collections.abc import Iterator
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

StateT = TypeVar("StateT", bound=Enum)


class IllegalTransitionError(Exception):
    """Step of a machine that its table does not have: an event that cannot happen, or a wrong next state."""


class Row(NamedTuple, Generic[StateT]):
    """Row of the table: states that may follow.

    Args:
        states: of the machine before.
        events: what happens, by the names of the machine's methods.
        next_state: the state after it; None if it stays as it is.
        when: under which condition, or why, in a few words.
    """

    states: tuple[StateT, ...]
    events: tuple[str, ...]
    next_state: StateT | None
    when: str


class Transitions(Generic[StateT]):
    """Legal transitions of a kind of machine.

    Args:
        name: of the machine, for errors and documents.
        rows: the table; what is not in it is illegal.
    """

    def __init__(self, name: str, *rows: Row[StateT]) -> None:
        self.name = name
        self._rows = rows
        self._legal = {
            (state, event, state if row.next_state is None else row.next_state)
            for row in rows
            for state in row.states
            for event in row.events
        }

    def step(self, state: StateT, event: str, next_state: StateT) -> StateT:
        """Return the next state.

        Raises:
            IllegalTransitionError: the table has no such transition.
        """
        if (state, event, next_state) not in self._legal:
            raise IllegalTransitionError(f"{self.name}: {event} leads from {state.name} to {next_state.name}")
        return next_state

    def lines(self) -> Iterator[str]:
        """Yield the table in Markdown."""
        yield "| state | event | next state | when |"
        yield "|---|---|---|---|"
        for states, events, next_state, when in self._rows:
            before = ", ".join(state.name for state in states)
            names = ", ".join(f"`{event}`" for event in events)
            yield f"| {before} | {names} | {'the same' if next_state is None else next_state.name} | {when} |"
