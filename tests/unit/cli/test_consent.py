"""Commands that destroy: they ask, or take `--yes`, and say with `--dry-run` what would go."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from popwheel_cli.main import main
from tests.unit.cli.fake_admin_api import FakeAdminApi
from tests.unit.cli.test_main import sentence_of

DELETED: dict[str, Any] = {
    "name": "orders",
    "deleted": False,
    "unread": 12,
    "in_flight": 3,
    "delayed": 0,
    "half_messages": 0,
    "dead_letters": 0,
    "used_with": ["workers"],
    "used_with_total": 1,
    "polling_proxies": 2,
    "rests_until_ms": 1_700_000_000_000,
    "unanswered": [],
}
KNOWS: dict[str, tuple[int, Any]] = {"GET /changes?limit=1": (200, {"changes": [], "next": None})}
PURGE = "POST /groups/orders/dead-letters/purge"
RESET = "POST /groups/orders/reset"
DROP = "POST /quarantine/b/1/drop"
RECOVER = "POST /cluster/recovery"
RECOVERED: dict[str, Any] = {
    "brokers": ["b"],
    "topics": [],
    "topics_total": 0,
    "groups": [],
    "groups_total": 0,
    "kept_total": 0,
    "findings": [],
    "findings_total": 0,
}
ANSWERS: dict[str, tuple[int, Any]] = {
    **KNOWS,
    "GET /cluster": (200, {"brokers": [{"name": "b"}]}),
    "GET /groups/orders/dead-letters/b?begin=0&limit=1": (200, {"total": 4, "max_offset": 4}),
    "POST /groups/orders/dead-letters/b/redrive": (200, {"redriven": 4, "kept": 0}),
    PURGE: (200, {"purged": 4, "unanswered": []}),
    RESET: (200, {"queues": [], "in_flight": 0, "retries": 0, "retries_kept": 0, "consumers": 0, "unanswered": []}),
    DROP: (200, {"broker": "b", "id": "1", "changed": True}),
    f"{DROP}?dry_run=true": (200, {"broker": "b", "id": "1", "changed": True}),
    **{
        f"DELETE /{kind}/orders{asked}": (200, {**DELETED, "deleted": not asked})
        for kind in ("topics", "groups")
        for asked in ("", "?dry_run=true")
    },
    **{
        f"POST /brokers/orders/{verb}?dry_run=true": (
            200,
            {"name": "orders", "replicas": [1], "loss": "all may be lost.", "word": "word"},
        )
        for verb in ("forget", "unclean-election")
    },
    **{f"{RECOVER}{asked}": (200, RECOVERED) for asked in ("", "?dry_run=true")},
    "POST /brokers/orders/forget": (200, {"name": "orders", "replicas": []}),
    "POST /brokers/orders/unclean-election": (200, {"name": "orders", "master": 1, "epoch": 4}),
}
COMMANDS = {
    "topic delete": (["topic", "delete", "orders"], "DELETE /topics/orders"),
    "group delete": (["group", "delete", "orders"], "DELETE /groups/orders"),
    "broker forget": (["broker", "forget", "orders"], "POST /brokers/orders/forget"),
    "elect-unclean": (["broker", "elect-unclean", "orders"], "POST /brokers/orders/unclean-election"),
    "cluster recover": (["cluster", "recover"], RECOVER),
    "dlq purge": (["dlq", "purge", "orders"], PURGE),
    "dlq redrive": (["dlq", "redrive", "orders"], "POST /groups/orders/dead-letters/b/redrive"),
    "offset reset": (["offset", "reset", "orders", "t", "--to", "latest"], RESET),
    "quarantine drop": (["quarantine", "drop", "b", "1"], DROP),
}
ALL = pytest.mark.parametrize(("words", "does"), COMMANDS.values(), ids=COMMANDS)


def admin(words: list[str], *more: str, answer: str = "", answers: Any = None) -> tuple[Result, list[tuple[str, Any]]]:
    """What a command says, and what it asked for: dry runs by their bodies are left out."""
    with FakeAdminApi(ANSWERS if answers is None else answers) as api:
        result = CliRunner().invoke(main, ["admin", "--server", api.url, *words, *more], input=answer)
    return result, [(what, body) for what, body in api.asked if not (body or {}).get("dry_run")]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popwheel_cli.admin.consent.has_terminal", lambda: True)


@ALL
def test_without_a_terminal_and_without_yes_it_is_refused(words: list[str], does: str) -> None:
    result, asked = admin(words, answer="y\n")
    assert (result.exit_code, asked) == (2, [])
    assert "nothing was done" in sentence_of(result) and "--yes" in sentence_of(result)


@ALL
def test_with_yes_it_is_done(words: list[str], does: str) -> None:
    result, asked = admin(words, "--yes")
    assert result.exit_code == 0, result.output
    assert does in [what for what, _ in asked]


@ALL
def test_a_dry_run_does_nothing(words: list[str], does: str) -> None:
    result, asked = admin(words, "--dry-run")
    assert result.exit_code == 0, result.output
    assert does not in [what for what, _ in asked]


@ALL
def test_at_a_terminal_it_asks(terminal: None, words: list[str], does: str) -> None:
    result, asked = admin(words, answer="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert does not in [what for what, _ in asked] and "[y/N]" in result.stderr
    result, asked = admin(words, answer="y\n")
    assert result.exit_code == 0, result.output
    assert does in [what for what, _ in asked]


def test_the_question_says_what_goes(terminal: None) -> None:
    result, _ = admin(["topic", "delete", "orders"], answer="n\n")
    assert "with orders go: 12 unread, 3 in flight; used with workers; clients of 2 proxies poll" in result.stderr
    assert "delete the topic orders with all its messages? [y/N]" in result.stderr
    result, _ = admin(["broker", "forget", "orders"], answer="n\n")
    assert "all may be lost." in result.stderr


def test_a_dry_run_shows_what_would_go() -> None:
    result, _ = admin(["topic", "delete", "orders"], "--dry-run", "-o", "json")
    assert json.loads(result.stdout) == DELETED
    result, _ = admin(["topic", "delete", "orders"], "--dry-run")
    assert ["unread", "12"] in [line.split() for line in result.stdout.splitlines()]
    assert "this was a dry run" in result.stderr


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_a_controller_without_dry_runs_is_asked_for_none(how: str) -> None:
    """It would delete: an older release passes over a parameter that it does not know."""
    answers = {key: value for key, value in ANSWERS.items() if key not in KNOWS}
    result, asked = admin(["topic", "delete", "orders"], how, answers=answers)
    deletes = [what for what, _ in asked if what.startswith("DELETE")]
    assert (result.exit_code, deletes) == ((1, []) if how == "--dry-run" else (0, ["DELETE /topics/orders"]))


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        else:
            found.append((" ".join((*path, name)), command))
    return found


def test_each_command_whose_name_says_that_it_destroys_asks() -> None:
    from popwheel_cli.admin.commands import admin as group

    destroying = ("delete", "forget", "elect-unclean", "purge", "drop", "reset", "redrive", "remove", "clear")
    found = {name: command for name, command in commands(group) if name.split()[-1] in destroying}
    del found["context remove"]  # of the operator's own file; the cluster stays
    assert {"topic delete", "group delete", "broker forget", "dlq purge", "quarantine drop"} <= found.keys()
    for name, command in found.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--yes", "--dry-run"} <= options, name


LINE = {
    "id": "1",
    "time_ms": 1_700_000_000_000,
    "who": "ops",
    "address": "10.0.0.1",
    "verb": "topic delete",
    "object": "orders",
    "before": "",
    "after": "gone",
    "outcome": "done",
    "times": 2,
}


def test_changes_are_shown_the_latest_first() -> None:
    asked = "GET /changes?object=orders&who=&after=&limit=50"
    answers = {asked: (200, {"changes": [LINE], "next": None})}
    result, _ = admin(["changes", "--object", "orders"], answers=answers)
    shown = " ".join(result.stdout.splitlines()[1].split())
    assert shown == "2023-11-14T22:13:20.000Z ops 10.0.0.1 topic delete orders (2 times) done - gone"
    result, _ = admin(["changes", "--object", "orders"], "-o", "json", answers=answers)
    assert json.loads(result.stdout) == [LINE]


def test_changes_are_asked_for_page_by_page() -> None:
    answers = {
        "GET /changes?object=&who=ops&after=&limit=3": (200, {"changes": [LINE, LINE], "next": "9"}),
        "GET /changes?object=&who=ops&after=9&limit=1": (200, {"changes": [LINE], "next": "8"}),
    }
    result, _ = admin(["changes", "--who", "ops", "--limit", "3"], answers=answers)
    assert (len(result.stdout.splitlines()), result.stderr) == (4, "there are more: raise --limit\n")
