"""Settings, from five places into one checked model.

What comes later wins: the model's defaults, a YAML file, the environment (`POPWHEEL_BROKER__FLUSH=async`),
`--set broker.flush=async`, flags of the command line. A key that no model has and a value that is not possible are
refused with a `ConfigurationError` that names the key and says what is possible. A model may have `removed_names`:
settings of an earlier release, of which the error says that they are gone. Old names of `RENAMED_OPTIONS` are accepted.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.option_fields import find_field, plain_value, possible_values, sub_model
from popwheel_common.settings.renamed_options import OldNames

ENVIRONMENT_PREFIX = "POPWHEEL_"
OF_COMMANDS = frozenset(f"POPWHEEL_{name}" for name in ("TOKEN", "ACCESS_KEY", "SECRET", "SERVER", "CONTEXT"))
"""Variables of commands that call a cluster; they are no settings of a process."""

Options = TypeVar("Options", bound=BaseModel)

_SHOWN_LENGTH_MAX = 80

_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = frozenset(("true", "false", "yes", "no", "on", "off", "null"))
"""Words that YAML takes for something else than text, in lower case."""

_FROM_KUBERNETES = re.compile(
    rf"{ENVIRONMENT_PREFIX}(?:(?!\w*__)\w+_)?(?:SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)\w*)?)"
)
"""Variables by which Kubernetes announces each service to each pod, for example `POPWHEEL_PROXY_SERVICE_HOST`."""


def load(
    model: type[Options],
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
    sources: dict[str, str] | None = None,
    old_names: dict[str, str] | None = None,
) -> Options:
    """Put the settings of a process together and check them.

    Args:
        model: the root model; its nested models give the keys their dots.
        file: a YAML file of settings, nested as the model is; None for none.
        environment: variables of the process; those that do not begin with `POPWHEEL_` are passed over. Two
            underscores stand for a dot, values are YAML.
        assignments: `key=value` texts in order; values are YAML (`[1, 2]` is a list, `"8"` is text).
        flags: values by full key, from flags that were really given.
        sources: takes where each setting came from, by full key: `file`, `environment`, `command line`. What is not
            there is a default.
        old_names: takes the old names that were used, with the new ones.

    Raises:
        ConfigurationError: an unknown key, an impossible value, or a file that cannot be read as settings.
    """
    settings: dict[str, Any] = {}
    found: dict[str, str] = {} if sources is None else sources
    renaming = OldNames()

    def take(newer: Mapping[Any, Any], place: str, source: str) -> None:
        newer = renaming.replaced(newer, settings, source)
        _merge(model, settings, newer, place)
        _record(found, newer, source)

    if file is not None:
        take(_read_file(file), f"in {file}", "file")
    for variable, text in sorted((environment or {}).items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OF_COMMANDS:
            continue
        if not _FROM_KUBERNETES.fullmatch(variable):
            if "__" not in variable:
                raise ConfigurationError(
                    variable, "is not a setting's variable; two underscores stand for a dot: POPWHEEL_BROKER__FLUSH"
                )
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            take(_nest(key, _scalar(key, text)), f"in the environment ({variable})", "environment")
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key.strip():
            raise ConfigurationError("--set", f"must be key=value, such as broker.flush=async, not {assignment!r}")
        take(_nest(key.strip(), _scalar(key, text)), "in --set", "command line")
    for key, value in (flags or {}).items():
        take(_nest(key, value), "in a flag", "command line")
    if old_names is not None:
        old_names.update(renaming.found)
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise _in_words(model, error) from None


def _read_file(file: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError("--config", f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError("--config", f"{file} is not a text file in UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigurationError("--config", f"{file} is not YAML{place}: {problem}") from error
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ConfigurationError("--config", f"{file} must hold keys with values, such as `broker:`")
    return content


def _scalar(key: str, text: str) -> object:
    """Return what a text is in YAML. Its library is loaded for more than a word or a number: that takes 10 ms."""
    if _WORD.fullmatch(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    if _NUMBER.fullmatch(text):
        return int(text)
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigurationError(
            key, f"{_shown(text)} cannot be read as YAML; put it in quotes if it is meant as text"
        ) from None


def _nest(key: str, value: object) -> dict[str, Any]:
    names = key.split(".")
    nested: Any = value
    for name in reversed(names):
        nested = {name: nested}
    return dict(nested)


def _merge(
    model: type[BaseModel], settings: dict[str, Any], newer: Mapping[Any, Any], source: str, prefix: str = ""
) -> None:
    """Lay `newer` over `settings`, group by group; refuse keys that the model does not have."""
    for name, value in newer.items():
        key = f"{prefix}{name}"
        info = model.model_fields.get(name) if isinstance(name, str) else None
        if info is None:
            if name in getattr(model, "removed_names", ()):
                raise ConfigurationError(key, f"is no setting any more ({source}), its value is fixed now: remove it")
            raise ConfigurationError(key, f"there is no such setting ({source}); {_suggest(model, prefix, str(name))}")
        nested = sub_model(info)
        if nested is None:
            settings[name] = value
        elif isinstance(value, Mapping):
            _merge(nested, settings.setdefault(name, {}), value, source, f"{key}.")
        elif value is not None:  # `broker:` with nothing below it is an empty group
            raise ConfigurationError(
                key, f"is a group of settings ({source}), such as {key}.{next(iter(nested.model_fields), '...')}"
            )


def _record(sources: dict[str, str], newer: Mapping[Any, Any], source: str, prefix: str = "") -> None:
    """Record where settings came from."""
    for name, value in newer.items():
        if isinstance(value, Mapping):
            _record(sources, value, source, f"{prefix}{name}.")
        else:
            sources[f"{prefix}{name}"] = source


def _suggest(model: type[BaseModel], prefix: str, name: str) -> str:
    from difflib import get_close_matches  # imported here: only a refusal needs it

    names = list(model.model_fields)
    close = get_close_matches(name, names, n=1)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    if not names:
        return f"{prefix.rstrip('.')} is a single setting"
    return f"possible here: {', '.join(names)}"


def _in_words(model: type[BaseModel], error: ValidationError) -> ConfigurationError:
    """Return one sentence per key, the first of them under its own name."""
    sentences: dict[str, str] = {}
    for details in error.errors(include_url=False):
        key, sentence = _sentence(model, details)
        sentences.setdefault(key, sentence)
    (first_key, first), *others = sentences.items()
    return ConfigurationError(first_key, "; ".join([first, *(f"{key}: {sentence}" for key, sentence in others)]))


def _sentence(model: type[BaseModel], details: ErrorDetails) -> tuple[str, str]:
    path: list[str] = []
    for part in details["loc"]:
        if not isinstance(part, str) or find_field(model, [*path, part]) is None:
            break
        path.append(part)
    key = ".".join(path) or "options"
    info = find_field(model, path)
    if details["type"] == "value_error":
        return key, str(details["ctx"]["error"]) if "ctx" in details else details["msg"]
    if details["type"] == "missing":
        return key, "must be given"
    if info is None or sub_model(info) is not None:
        return key, details["msg"]
    return key, f"must be {possible_values(info)}, not {_shown(details['input'])}"


def _shown(value: object) -> str:
    text = plain_value(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}..."
