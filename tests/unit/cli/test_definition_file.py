"""What a file of definitions may say, and that a refusal names the line."""

from typing import Any

import pytest
import yaml

from popwheel_cli.admin import definition_file
from popwheel_cli.admin.definition_file import Entry, FileError, entries_of, written


def refusal(text: str | bytes) -> str:
    with pytest.raises(FileError) as caught:
        entries_of(text if isinstance(text, bytes) else text.encode(), "f")
    return caught.value.message


def test_what_is_written_is_read_back_and_written_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["b", "a", "true", "1", "%x", "-", "null", "0x1", "1e3", "2026-01-01"]
    topics: list[dict[str, Any]] = [{"queues": 8, "type": "NORMAL", "name": name} for name in names]
    groups: list[dict[str, Any]] = [
        {"name": "g2", "max_attempts": 3, "fifo": True, "backoff_ms": [1, 2]},
        {"name": "g1", "exponential_backoff": {"initial_ms": 1, "max_ms": 2, "multiplier": 1.5}},
    ]
    text = written(topics, groups)
    entries = entries_of(text.encode(), "f")
    assert [each.name for each in entries] == [*sorted(names), "g1", "g2"]
    assert entries[0] == Entry("topic", {"name": "%x", "type": "NORMAL", "queues": 8}, 3) or entries[0].name == "%x"
    again = written(
        [each.settings for each in reversed(entries) if each.kind == "topic"],
        [each.settings for each in entries if each.kind == "group"],
    )
    assert again == text
    monkeypatch.setattr(definition_file, "_Dumper", yaml.SafeDumper)
    assert written(topics, groups) == text  # also where libyaml is not there
    assert written([], []) == "version: 1\ntopics: []\ngroups: []\n"
    assert entries_of(b"{}", "f") == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is no map of topics and groups"),
        ("[1]", "is no map of topics and groups"),
        ("topics: {a: 1}", "line 1: topics must be a list"),
        ("a: b: c", "f is no YAML"),
        ("topics:\n- name: a\n  qeues: 3\n", "line 3: there is no 'qeues'; known are name, type, queues"),
        ("topic: []\n", "line 1: there is no 'topic'; known are version, topics, groups"),
        ("topics:\n- 3\n", "line 2: a topic must be a map"),
        ("topics:\n- {queues: 3}\n", "line 2: a topic has no name"),
        ("topics:\n- {name: 3}\n", "line 2: name must be a text; write it in quotes, not '3'"),
        ("topics:\n- {name: a, queues: '3'}\n", "line 2: queues must be a whole number"),
        ("topics:\n- {name: a, queues: true}\n", "line 2: queues must be a whole number"),
        ("topics:\n- {name: a, queues: 1, queues: 2}\n", "line 2: queues is there twice"),
        ("topics:\n- {name: a}\n- {name: a, queues: 1}\n", "lines 2 and 3: the topic a is there twice"),
        ("groups:\n- {name: a, fifo: 1}\n", "fifo must be true or false"),
        ("groups:\n- {name: a, backoff_ms: [1, x]}\n", "backoff_ms must be a list of whole numbers"),
        ("groups:\n- {name: a, exponential_backoff: {initial_ms: 1}}\n", "must be a map of initial_ms, max_ms"),
        ("groups:\n- {name: a, <<: {fifo: true}}\n", "there is no '<<'"),
        ("groups:\n- {name: !!python/object:x a}\n", "line 2: could not determine a constructor"),
        ("version: 2\n", "line 1: version must be 1"),
        ("- - " * 20_000, "f, line 1: this is nested too deeply"),
        (b"\xff", "is not in UTF-8"),
    ],
)
def test_a_file_that_says_what_it_cannot_is_refused(text: str | bytes, part: str) -> None:
    assert part in refusal(text)


def test_what_is_said_twice_alike_is_said_once() -> None:
    assert len(entries_of(b"topics:\n- {name: a}\n- {name: a}\ngroups:\n- {name: a}\n", "f")) == 2


def test_files_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_file, "ENTRIES_MAX", 2)
    three = b"topics:\n- {name: a}\n- {name: b}\ngroups:\n- {name: c}\n"
    with pytest.raises(FileError, match="more than 2 topics and groups"):
        entries_of(three, "f")
    with pytest.raises(FileError, match="more than 16 MiB"):
        entries_of(b" " * (definition_file.BYTES_MAX + 1), "f")


def test_aliases_are_read_as_what_they_stand_for() -> None:
    found = entries_of(b"groups:\n- {name: a, backoff_ms: &w [1, 2]}\n- {name: b, backoff_ms: *w}\n", "f")
    assert [each.settings["backoff_ms"] for each in found] == [[1, 2], [1, 2]]
