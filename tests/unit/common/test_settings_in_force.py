"""Settings that others may see: nothing that is secret is among them."""

from pydantic import BaseModel

from popwheel_cli.options import ClusterOptions
from popwheel_common.settings.settings_in_force import HIDDEN, shown_settings, without_passwords


class Inner(BaseModel):
    secret: str = "S3CR3T"
    key_file: str = "/etc/key"
    access_token: str = ""
    keys: dict[str, str] = {"a": "S3CR3T"}
    monkeys: int = 3
    urls: list[str] = ["redis://user:S3CR3T@host:1/0", "http://host"]


class Outer(BaseModel):
    inner: Inner = Inner()
    name: str = "n"


def test_what_its_name_says_is_secret_is_not_shown() -> None:
    assert shown_settings(Outer()) == {
        "inner": {
            "secret": HIDDEN,
            "key_file": HIDDEN,
            "access_token": "",
            "keys": {"a": HIDDEN},
            "monkeys": 3,
            "urls": ["redis://***@host:1/0", "http://host"],
        },
        "name": "n",
    }


def test_settings_of_a_process_are_shown() -> None:
    options = ClusterOptions.model_validate(
        {"access": {"token_file": "/run/TOKENS"}, "proxy": {"redis_url": "redis://:PASSWORD@r:6379/0"}}
    )
    shown = shown_settings(options)
    assert shown["proxy"]["redis_url"] == "redis://***@r:6379/0"
    assert shown["access"]["token_file"] == HIDDEN
    assert shown["broker"]["flush"] == "sync"
    assert "PASSWORD" not in str(shown)
    assert "TOKENS" not in str(shown)


def test_passwords_in_a_text() -> None:
    assert without_passwords("at redis://u:p@h/0 and amqp://x@y") == "at redis://***@h/0 and amqp://***@y"
