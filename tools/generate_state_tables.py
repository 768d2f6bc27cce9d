"""Write the tables of states into the READMEs from the code that goes by them (run by `make docs`)."""

import re
from pathlib import Path
from typing import Any

from popwheel_broker.replication import set_states
from popwheel_broker.role import role
from popwheel_common.transitions import Transitions
from popwheel_proxy.receive import long_poll

ROOT = Path(__file__).resolve().parent.parent
TABLES: tuple[Transitions[Any], ...] = (
    long_poll.TRANSITIONS,
    set_states.REPLICA_STATES,
    set_states.WISH_STATES,
    role.TRANSITIONS,
)
PAGES = sorted((ROOT / "services").rglob("README.md"))

_PLACE = re.compile(r"(<!-- states: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def shown(page: str) -> set[str]:
    """The machines whose tables a page shows."""
    return {name for _, name, _ in _PLACE.findall(page)}


def with_tables(page: str) -> str:
    """A page with its tables as they are in the code.

    Raises:
        KeyError: no machine has the name that the page says.
    """
    tables = {table.name: "\n".join(table.lines()) for table in TABLES}
    return _PLACE.sub(lambda place: f"{place[1]}{tables[place[2]]}\n{place[3]}", page)


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if shown(before):
            page.write_text(with_tables(before), encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
