"""Options of `popwheel admin topic create` and `update` for the table of topic settings."""

from collections.abc import Callable
from typing import Any

import click

from popwheel_cli.admin.spans import Span
from popwheel_common.contract.topic_settings import TOPIC_SETTINGS, TopicSetting


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting; the command gets it as an argument of the setting's name."""
    for each in reversed(TOPIC_SETTINGS):
        command = _option(each)(command)
    return command


def _option(setting: TopicSetting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    if setting.words:
        return click.option(setting.option, setting.name, type=click.Choice(setting.words), help=setting.help)
    return click.option(
        setting.option, setting.name, type=Span(zero=True), help=f"{setting.help} Written 90s, 10m, 2h or 1d."
    )
