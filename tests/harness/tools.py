"""What tests do about a tool that is not on this machine."""

import os
from typing import NoReturn

import pytest


def missing(tool: str, remedy: str) -> NoReturn:
    """Skip the test that needs a tool; fail it where nothing may be missing (`CI=true`).

    Args:
        tool: what is not there.
        remedy: how to get it.
    """
    sentence = f"{tool} is missing: {remedy}"
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)
