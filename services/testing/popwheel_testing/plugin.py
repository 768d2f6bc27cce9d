"""Fixtures of pytest: `pytest_plugins = ["popwheel_testing.plugin"]` in the top conftest.py (docs/use/testing.md)."""

import re
import uuid
from collections.abc import Iterator, Mapping

import pytest

from popwheel_testing.server import PopwheelServer

_NAME_LENGTH_MAX = 60
"""Limit of the length of a test's name within the names of its topic and group."""


@pytest.fixture(scope="session")
def popwheel_settings() -> Mapping[str, object]:
    """Settings of the server; override this fixture to change them."""
    return {}


@pytest.fixture(scope="session")
def popwheel_topics() -> Mapping[str, str]:
    """Topics to create at the start, with their types; override this fixture to have some."""
    return {}


@pytest.fixture(scope="session")
def popwheel(popwheel_settings: Mapping[str, object], popwheel_topics: Mapping[str, str]) -> Iterator[PopwheelServer]:
    """Server for all tests of this process."""
    with PopwheelServer(popwheel_settings, topics=popwheel_topics) as server:
        yield server


@pytest.fixture
def popwheel_topic(request: pytest.FixtureRequest) -> str:
    """Unique topic of this test; created on first use, for messages of all types."""
    return _fresh_name(request)


@pytest.fixture
def popwheel_group(request: pytest.FixtureRequest) -> str:
    """Unique consumer group of this test; created on first use."""
    return _fresh_name(request)


def _fresh_name(request: pytest.FixtureRequest) -> str:
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:_NAME_LENGTH_MAX].strip("-")
    return f"{test}-{uuid.uuid4().hex[:8]}"
