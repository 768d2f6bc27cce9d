"""Style that no linter knows: names, docstrings, calls and constructors, and the length of files."""

import re

from tests.unit.source import Facts, facts_of, sources

LINES_MAX = 660
ARGUMENTS_MAX = 7
"""Of a constructor, `self` not counted."""

LONG_CONSTRUCTORS_LEFT = {
    "popwheel_broker.core.core.BrokerCore": 8,
    "popwheel_broker.core.cluster_changes.ClusterChanges": 8,
    "popwheel_broker.log.message_store.MessageStore": 8,
    "popwheel_broker.delay.message_timer.MessageTimer": 8,
}
"""Class -> the arguments of its `__init__` that are still to be joined. It only shrinks."""

CLAUSES = {
    *("Whether", "What", "Whatever", "How", "Where", "Which", "Who", "Whom", "Whose", "Whoever", "When", "Why"),
    *("If", "That", "So", "Until", "Since", "Before", "After", "As", "Of", "From", "By", "In", "For", "Up", "To"),
    *("On", "At", "With", "Without", "About", "Between", "Below", "Behind", "Among", "Some", "One", "All", "Those"),
}
"""First words of a clause. A docstring, also of an attribute, begins with a verb or a noun of the field instead."""

VAGUE = {
    **dict.fromkeys(("look", "looks", "looked", "looking"), "poll, scan, read"),
    **dict.fromkeys(("note", "notes", "noted"), "record"),
    **dict.fromkeys(("keep", "keeps", "kept", "keeper"), "store, retain, cache, renew"),
    **dict.fromkeys(("stay", "stays", "stayed"), "remain, wait"),
    **dict.fromkeys(("go", "goes", "went", "going"), "resume, advance, leave"),
    **dict.fromkeys(("come", "comes", "came", "coming"), "arrive, connect, register"),
    **dict.fromkeys(("turn", "turns", "turned"), "next, rotation, order"),
    "each": "the noun itself",
}
"""Parts of names that say nothing of the field -> words that do."""

VAGUE_NAMES_LEFT = {
    *("kept", "kept_back_by", "kept_total", "retries_kept", "looked_through", "stay_ms", "_stay_ms", "_stay_s"),
    *("go_away", "going_away", "_on_going_away", "GoingAway", "GOING_AWAY_PING"),
    *("turn", "_LEASE_TURN", "turn_budget", "loop_turns", "turns", "Turns", "_Turns", "_turns", "TurnBudget"),
    *("TurnTimes", "LoopTurns", "TURN_COST_MAX", "_TURNS_MAX", "_HANDSHAKE_TURNS", "_next_turn", "_filter_turn"),
    "_filter_turns",
}
"""Names that may have them: fields of the API and of records, options, GOAWAY of HTTP/2, turns of the event loop."""


def test_every_module_says_what_it_is_for() -> None:
    written = [
        source
        for source in sources("services", "spark", "tests", "tools", "bench", "demo", "examples")
        if source.text.strip()
    ]
    assert [source.name for source in written if not source.facts.docstring] == []


def clauses(facts: Facts) -> list[str]:
    """The docstrings that begin with a clause, as `line: first words`."""
    return [
        f"{line}: {' '.join(text.split()[:6])}"
        for line, text in facts.docstrings
        if (words := re.findall(r"\w+", text)) and words[0] in CLAUSES
    ]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{source.name}:{each}"
        for source in sources("services", "spark", "tools", "bench")
        for each in clauses(source.facts)
    ]
    assert found == [], "begin a docstring with a verb (`Return whether ...`) or a noun (`Number of ...`)"


def test_a_docstring_that_begins_with_a_clause_is_seen() -> None:
    code = (
        '"""Whether."""\nN = 1\n"""Of n."""\ndef f():\n "A verb."\n def g():\n  "So it is."\n'
        'class C:\n "Why."\n def __init__(self):\n  self.a = 1\n  "How many."\n'
    )
    assert clauses(facts_of(code)) == ["1: Whether.", "3: Of n.", "7: So it is.", "9: Why.", "12: How many."]


def vague(facts: Facts) -> list[str]:
    """The names that have a vague part, as `line: name -> better words`."""
    names = [
        (line, name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")) for line, name in facts.definitions
    ]
    return [
        f"{line}: {name} -> {VAGUE[part]}"
        for line, name, parts in names
        if name not in VAGUE_NAMES_LEFT
        for part in parts
        if part in VAGUE
    ]


def test_names_have_words_of_the_field() -> None:
    found = [f"{source.name}:{each}" for source in sources("services", "spark") for each in vague(source.facts)]
    assert [each for each in found if "/pb/" not in each] == []
    stems = {source.path.stem for source in sources("services", "spark")} - VAGUE_NAMES_LEFT
    assert {stem for stem in stems if VAGUE.keys() & set(stem.split("_"))} == set(), "a module's name is vague"


def test_a_vague_name_is_seen() -> None:
    code = (
        "KEPT_MAX = 1\nclass GoOn:\n  kept_at = 1\n  note: int\n  def look_up(self, each):\n    self.came = keep = 1\n"
    )
    assert [line.split(" ->")[0] for line in vague(facts_of(code))] == [
        *("1: KEPT_MAX", "2: GoOn", "3: kept_at", "4: note", "5: look_up", "6: came"),
    ]


def test_no_file_holds_two_nouns() -> None:
    files = sources("services", "spark", "tests", "tools", "bench", "demo", "examples")
    assert [source.name for source in files if len(source.text.splitlines()) > LINES_MAX] == []


def test_no_call_spreads_a_tuple_that_it_writes_out() -> None:
    found = {source.module: source.facts.spread_calls for source in sources("services", "spark")}
    assert not {module: lines for module, lines in found.items() if lines}, (
        "write f(*(a, b), *(c, d)) as f(a, b, c, d), with keywords if there are more than four arguments; if they are "
        "too many, join those that always travel together into an object with a name"
    )


def test_a_call_that_spreads_a_tuple_is_seen() -> None:
    code = "f(*(a, b), c)\ng(*[a])\nh(a, *rest)\nh(a, {*(1, 2)})\n"
    assert facts_of(code).spread_calls == [1, 2]


def test_no_constructor_takes_many_arguments() -> None:
    found = {
        f"{source.module}.{name}": count
        for source in sources("services")
        for name, count in source.facts.constructors
        if count > ARGUMENTS_MAX
    }
    assert found == LONG_CONSTRUCTORS_LEFT, (
        f"a constructor takes at most {ARGUMENTS_MAX} arguments: pass the context of its service (ProxyContext, "
        "BrokerContext, ControllerContext, Runtime), join those that always travel together into a frozen dataclass "
        "with a name that means something, and leave out what is only passed through. Where one of "
        "LONG_CONSTRUCTORS_LEFT takes fewer now, lower its number, or take it from the list."
    )


def test_arguments_of_constructors_are_counted() -> None:
    code = "class A:\n def __init__(self, a, /, b, *, c): ...\n def f(self, d): ...\n@dataclass\nclass B:\n a: int\n"
    assert facts_of(code).constructors == [("A", 3)]
