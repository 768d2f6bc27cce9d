"""Settings as words of a command line, for child processes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from pydantic import BaseModel


def given(file: Path | None, assignments: Sequence[str], options: BaseModel) -> list[str]:
    """Return the words that give a child the settings of this process; the environment is inherited.

    Args:
        file: as it was given.
        assignments: as they were given; those by an old name are passed by the new one, which the child's own words
            may override.
        options: what all of it amounts to.
    """
    # Loaded here, as it loads protobuf: the server for tests stands beside an official client, whose messages have the
    # same names.
    from popwheel_common.settings.renamed_options import RENAMED_OPTIONS

    words = [] if file is None else ["--config", str(file.absolute())]
    renamed: dict[str, object] = {}
    for assignment in assignments:
        if (option := RENAMED_OPTIONS.get(assignment.partition("=")[0].strip())) is None:
            words += ["--set", assignment]
        else:
            renamed[option.name] = attrgetter(option.name)(options)
    return [*words, *assigned(renamed)]


def assigned(settings: Mapping[str, object]) -> list[str]:
    """Return words that set these values, overriding earlier ones."""

    def words() -> Iterator[str]:
        for key, value in settings.items():
            yield "--set"
            yield f"{key}={json.dumps(value)}"  # JSON is YAML

    return list(words())
