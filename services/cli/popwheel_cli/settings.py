"""Settings as words of a command line, for child processes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def given(file: Path | None, assignments: Sequence[str]) -> list[str]:
    """Return the words that gave this process its settings; the environment is inherited."""
    words = [] if file is None else ["--config", str(file.absolute())]
    return [*words, *(word for assignment in assignments for word in ("--set", assignment))]


def assigned(settings: Mapping[str, object]) -> list[str]:
    """Return words that set these values, overriding earlier ones."""

    def words() -> Iterator[str]:
        for key, value in settings.items():
            yield "--set"
            yield f"{key}={json.dumps(value)}"  # JSON is YAML

    return list(words())
