"""The access file: users with their rules, as YAML or JSON (pure)."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from popwheel_common.contract.names import Kind, kind_of
from popwheel_proxy.access.users import NameSet, Right, Sort, User, Users

FILE_BYTES_MAX = 1024 * 1024

_ANY = "*"

Pattern = Annotated[str, Field(pattern=r"^([%A-Za-z0-9_-]{1,127}\*?|\*)$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Rule(_Entry):
    topic: Pattern | None = None
    group: Pattern | None = None
    allow: Annotated[list[Annotated[Right, Field(strict=False)]], Field(min_length=1, max_length=len(Right))]

    @model_validator(mode="after")
    def _of_one_sort(self) -> Self:
        if (self.topic is None) is (self.group is None):
            raise ValueError("a rule names either a topic or a group")
        if self.group is not None and Right.PUBLISH in self.allow:
            raise ValueError("a group is not published to: allow subscribe or admin")
        if self.topic is not None and self.topic != _ANY and kind_of(self.topic) is not Kind.USER:
            raise ValueError("retry and dead letter topics go with their group: name the group")
        return self

    def pattern(self) -> tuple[Sort, str]:
        if self.topic is not None:
            return Sort.TOPIC, self.topic
        assert self.group is not None
        return Sort.GROUP, self.group


class _User(_Entry):
    access_key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.@-]{1,64}$")]
    secret: Annotated[str, Field(min_length=8, max_length=256)]
    rules: Annotated[list[_Rule], Field(max_length=1_000)] = []


class _Document(_Entry):
    users: list[_User]


def users_of(data: bytes) -> Users:
    """Return the users of an access file.

    Raises:
        ValueError: it is not one; the sentence says where it is wrong, and no secret.
    """
    document = _checked(_parsed(data))
    users: dict[str, User] = {}
    for entry in document.users:
        if entry.access_key in users:
            raise ValueError(f"users: there are two with the access key {entry.access_key}")
        users[entry.access_key] = User(entry.access_key, entry.secret.encode(), _allowed(entry.rules))
    return users


def _parsed(data: bytes) -> Any:
    """Parse YAML, or JSON, which is faster."""
    try:
        return json.loads(data)
    except ValueError:
        pass
    try:
        return yaml.load(data, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise ValueError("it is not a text file in UTF-8") from error
    except yaml.YAMLError as error:
        # Its own message may quote the line, and so a secret.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"it is not YAML{'' if mark is None else f' at line {mark.line + 1}'}") from None


def _checked(content: Any) -> _Document:
    try:
        return _Document.model_validate(content)
    except ValidationError as error:
        raise ValueError("; ".join(_sentences(error))) from None


def _sentences(error: ValidationError) -> Iterator[str]:
    """Yield the errors as sentences, without the values given."""
    for details in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        yield f"{'.'.join(map(str, details['loc'])) or 'the file'}: {details['msg']}"


def _allowed(rules: list[_Rule]) -> Mapping[tuple[Sort, Right], NameSet]:
    patterns: defaultdict[tuple[Sort, Right], list[str]] = defaultdict(list)
    for rule in rules:
        sort, pattern = rule.pattern()
        for right in Right if Right.ADMIN in rule.allow else rule.allow:
            patterns[sort, right].append(pattern)
    return {
        key: NameSet(
            frozenset(each for each in some if not each.endswith(_ANY)),
            tuple({each.removesuffix(_ANY): None for each in some if each.endswith(_ANY)}),
        )
        for key, some in patterns.items()
    }


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
