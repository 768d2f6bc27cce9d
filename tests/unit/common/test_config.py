"""Settings: which place wins, and what is said about those that cannot be."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_validator

from popwheel_common.errors import ConfigurationError
from popwheel_common.settings.config import OF_COMMANDS, load
from popwheel_common.settings.option_fields import option_fields, plain_value


class LogPart(BaseModel):
    removed_names: ClassVar[tuple[str, ...]] = ("segments_bytes",)
    segment_bytes: int = Field(default=1024, ge=16, le=4096, description="Bytes of a segment.")
    waits_ms: list[Annotated[int, Field(ge=0)]] = Field(default=[1, 2], min_length=1, max_length=4)


class BrokerPart(BaseModel):
    flush: Literal["sync", "async"] = "sync"
    share: float = Field(default=0.5, gt=0, le=1)
    on: bool = False
    name: str = "b"
    folder: Path | None = None
    log: LogPart = LogPart()

    @model_validator(mode="after")
    def _fits(self) -> "BrokerPart":
        if self.name == "tiny" and self.log.segment_bytes > 1024:
            raise ValueError("a tiny broker has segments of 1024 bytes at the most")
        return self


class Root(BaseModel):
    broker: BrokerPart = BrokerPart()
    needed: int = 1


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "popwheel.yaml"
    file.write_text(text)
    return file


def refusal(**given: object) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(Root, **given)  # type: ignore[arg-type]
    return caught.value


def test_defaults_hold_where_nothing_is_said() -> None:
    assert load(Root) == Root()


def test_each_place_wins_over_the_one_before(tmp_path: Path) -> None:
    file = write(tmp_path, "broker: {name: file, flush: async, share: 0.1}\nneeded: 2")
    environment = {"POPWHEEL_BROKER__NAME": "environment", "POPWHEEL_BROKER__SHARE": "0.2", "PATH": "/bin"}
    options = load(Root, file=file, environment=environment)
    assert (options.broker.name, options.broker.flush, options.broker.share) == ("environment", "async", 0.2)
    assignments = ["broker.name=set", "broker.name=again"]
    options = load(Root, file=file, environment=environment, assignments=assignments)
    assert (options.broker.name, options.broker.share, options.needed) == ("again", 0.2, 2)
    options = load(
        Root, file=file, environment=environment, assignments=assignments, flags={"broker.name": "flag", "needed": 3}
    )
    assert (options.broker.name, options.broker.flush, options.needed) == ("flag", "async", 3)


def test_values_of_texts_are_yaml() -> None:
    options = load(
        Root, assignments=["broker.on=yes", "broker.log.waits_ms=[5, 6]", 'broker.name="7"', "broker.folder="]
    )
    assert options.broker == BrokerPart(on=True, name="7", log=LogPart(waits_ms=[5, 6]))


class AnyValue(BaseModel):
    value: Any = None


@given(
    st.from_regex(r"[a-zA-Z0-9_./~:+-]{1,8}", fullmatch=True)
    | st.sampled_from(["null", "Yes", "oFF", "y", "n", "true", "1e3", "0x1f", "017", "1_000", "190:20", "2026-11-28"])
)
def test_words_and_numbers_are_what_they_are_in_yaml(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return
    value = load(AnyValue, assignments=[f"value={text}"]).value
    assert (value, type(value)) == (expected, type(expected)) or value != value


def test_a_group_of_settings_may_be_empty(tmp_path: Path) -> None:
    assert load(Root, file=write(tmp_path, "broker:\n")) == Root()
    assert load(Root, file=write(tmp_path, "")) == Root()


@pytest.mark.parametrize(
    ("assignment", "key", "words"),
    [
        ("broker.flush=often", "broker.flush", "must be sync or async, not often"),
        ("broker.share=0", "broker.share", "must be a number at most 1, more than 0, not 0"),
        ("broker.on=maybe", "broker.on", "must be true or false, not maybe"),
        ("broker.name=7", "broker.name", "must be text, not 7"),
        ("broker.log.segment_bytes=15", "broker.log.segment_bytes", "a whole number from 16 to 4096, not 15"),
        ("broker.log.segment_bytes=1.5", "broker.log.segment_bytes", "a whole number from 16 to 4096, not 1.5"),
        ("broker.log.segment_bytes=", "broker.log.segment_bytes", "a whole number from 16 to 4096, not null"),
        (
            "broker.log.waits_ms=[]",
            "broker.log.waits_ms",
            "a list of whole numbers at least 0 of 1 to 4 entries, not []",
        ),
        ("broker.log.waits_ms=[-1]", "broker.log.waits_ms", "not -1"),
        ("broker.log=3", "broker.log", "is a group of settings (in --set), such as broker.log.segment_bytes"),
        ("broker.flash=async", "broker.flash", "no such setting (in --set); did you mean broker.flush?"),
        ("brokr.flush=async", "brokr", "did you mean broker?"),
        ("broker.log.segments_bytes=1", "broker.log.segments_bytes", "is no setting any more (in --set)"),
        ("broker.log.zzz=1", "broker.log.zzz", "possible here: segment_bytes, waits_ms"),
        ("broker.flush.x=1", "broker.flush", "must be sync or async, not {x: 1}"),
        ("broker.flush", "--set", "must be key=value"),
        ("=3", "--set", "must be key=value"),
        ("broker.name=[", "broker.name", "cannot be read as YAML"),
    ],
)
def test_what_is_said_about_a_wrong_setting(assignment: str, key: str, words: str) -> None:
    error = refusal(assignments=[assignment])
    assert error.key == key
    assert words in error.sentence
    assert "\n" not in str(error)


def test_every_wrong_setting_is_named_once() -> None:
    error = refusal(assignments=["broker.flush=x", "broker.share=2"])
    assert str(error) == (
        "broker.flush: must be sync or async, not x; broker.share: must be a number at most 1, more than 0, not 2"
    )


def test_what_a_model_says_about_several_settings_comes_through() -> None:
    error = refusal(assignments=["broker.name=tiny", "broker.log.segment_bytes=2000"])
    assert str(error) == "broker: a tiny broker has segments of 1024 bytes at the most"


def test_wrong_settings_say_where_they_stand(tmp_path: Path) -> None:
    assert "(in " + str(tmp_path) in refusal(file=write(tmp_path, "nothing: 1")).sentence
    assert "POPWHEEL_BROKER__FLASH" in refusal(environment={"POPWHEEL_BROKER__FLASH": "x"}).sentence
    error = refusal(environment={"POPWHEEL_BROKER_FLUSH": "async"})
    assert error.key == "POPWHEEL_BROKER_FLUSH"
    assert "two underscores" in error.sentence


def test_variables_of_commands_are_no_settings() -> None:
    assert load(Root, environment=dict.fromkeys(OF_COMMANDS, "x")) == Root()


@pytest.mark.parametrize(
    "variable",
    [
        "POPWHEEL_SERVICE_HOST",
        "POPWHEEL_PORT",
        "POPWHEEL_PROXY_SERVICE_HOST",
        "POPWHEEL_PROXY_SERVICE_PORT_GRPC",
        "POPWHEEL_PROXY_PORT",
        "POPWHEEL_PROXY_PORT_8081_TCP",
        "POPWHEEL_BROKER_0_PORT_8082_TCP_ADDR",
    ],
)
def test_what_kubernetes_puts_into_the_environment_is_no_setting(variable: str) -> None:
    assert load(Root, environment={variable: "tcp://10.0.0.1:8081"}) == Root()


@pytest.mark.parametrize(
    ("text", "words"),
    [("a: [", "is not YAML at line 1"), ("- a", "must hold keys with values"), ("5", "must hold keys with values")],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str, words: str) -> None:
    error = refusal(file=write(tmp_path, text))
    assert error.key == "--config"
    assert words in error.sentence


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in refusal(file=tmp_path / "none.yaml").sentence
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in refusal(file=tmp_path / "binary").sentence


ROOTS = st.builds(
    Root,
    needed=st.integers(),
    broker=st.builds(
        BrokerPart,
        flush=st.sampled_from(["sync", "async"]),
        share=st.floats(min_value=0, max_value=1, exclude_min=True),
        on=st.booleans(),
        # U+0085 is a line break of YAML that PyYAML writes so that it does not read it back itself.
        name=st.text().filter(lambda name: name != "tiny" and "\x85" not in name),
        folder=st.none() | st.text("abc/", min_size=1).map(Path),
        log=st.builds(
            LogPart,
            segment_bytes=st.integers(min_value=16, max_value=4096),
            waits_ms=st.lists(st.integers(min_value=0), min_size=1, max_size=4),
        ),
    ),
)


@given(options=ROOTS)
def test_settings_come_back_from_a_file(options: Root, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("config") / "popwheel.yaml"
    file.write_text(yaml.safe_dump(options.model_dump(mode="json"), allow_unicode=True), encoding="utf-8")
    assert load(Root, file=file) == options


@given(options=ROOTS)
def test_settings_come_back_from_texts(options: Root) -> None:
    """The same from `--set` and from the environment: each value written as YAML."""
    values = flat(options.model_dump(mode="json"))
    texts = {key: yaml.safe_dump(value, default_flow_style=True, width=math.inf) for key, value in values.items()}
    assert load(Root, assignments=[f"{key}={text}" for key, text in texts.items()]) == options
    environment = {f"POPWHEEL_{key.upper().replace('.', '__')}": text for key, text in texts.items() if "." in key}
    assert load(Root, environment=environment).broker == options.broker


def flat(nested: dict[str, object], prefix: str = "") -> dict[str, object]:
    """`{"broker": {"flush": "sync"}}` -> `{"broker.flush": "sync"}`."""
    values: dict[str, object] = {}
    for name, value in nested.items():
        values.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return values


def test_all_settings_in_words() -> None:
    fields = {field.key: (field.possible, field.default) for field in option_fields(Root)}
    assert fields == {
        "broker.flush": ("sync or async", "sync"),
        "broker.share": ("a number at most 1, more than 0", "0.5"),
        "broker.on": ("true or false", "false"),
        "broker.name": ("text", "b"),
        "broker.folder": ("a path or null", "null"),
        "broker.log.segment_bytes": ("a whole number from 16 to 4096", "1024"),
        "broker.log.waits_ms": ("a list of whole numbers at least 0 of 1 to 4 entries", "[1, 2]"),
        "needed": ("a whole number", "1"),
    }


def test_values_in_words() -> None:
    assert plain_value({"a": [1, True, None, ""]}) == '{a: [1, true, null, ""]}'


def test_each_setting_says_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("broker:\n  name: x\n  log:\n    segment_bytes: 64\n    waits_ms: [3]\n  share: 0.1\n")
    sources: dict[str, str] = {"old": "gone"}
    load(
        Root,
        file=file,
        environment={"POPWHEEL_BROKER__LOG__SEGMENT_BYTES": "128", "POPWHEEL_BROKER__ON": "true"},
        assignments=["broker.on=false"],
        flags={"broker.flush": "async"},
        sources=sources,
    )
    del sources["old"]
    assert sources == {
        "broker.name": "file",
        "broker.log.waits_ms": "file",
        "broker.share": "file",
        "broker.log.segment_bytes": "environment",
        "broker.on": "command line",
        "broker.flush": "command line",
    }
