"""What tests of commands share."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs


@pytest.fixture
def quiet_server() -> Iterator[None]:
    """A controller of the test's own process writes its log nowhere: what commands print is looked at."""
    with capture_logs():
        yield
