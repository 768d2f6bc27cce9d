"""The proxy through which `check` and drills go, if none is named."""

from typing import Any

import pytest

from popwheel_cli.admin.api import AdminApi
from popwheel_cli.admin.proxy_way import found_proxy
from popwheel_cli.errors import CommandError
from tests.unit.cli.fake_admin_api import STATUS, FakeAdminApi


def chosen(*proxies: dict[str, Any]) -> str:
    """The one that is chosen, of these and a broker."""
    processes = [*STATUS["processes"], *({"kind": "proxy", "ready": True, **each} for each in proxies)]
    with FakeAdminApi({"GET /cluster/status": (200, {**STATUS, "processes": processes})}) as api:
        return found_proxy(AdminApi(api.url))


def test_the_first_one_that_is_ready() -> None:
    assert chosen({"address": "10.0.0.1:8081", "ready": False}, {"address": "10.0.0.2:8081"}) == "10.0.0.2:8081"


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_one_that_listens_everywhere_is_where_the_controller_is(host: str) -> None:
    assert chosen({"address": f"{host}:8081"}) == "127.0.0.1:8081"


def test_one_of_an_older_release_that_did_not_say_where_it_is() -> None:
    with pytest.raises(CommandError, match=r"no proxy is ready .* name one with --proxy"):
        chosen({"address": ""})


@pytest.mark.parametrize(
    ("server", "host"),
    [("http://box.example:8080", "box.example"), ("http://[::1]:8080", "[::1]"), ("http://a:1,http://b:2", "a")],
)
def test_the_host_of_a_server(server: str, host: str) -> None:
    assert AdminApi(server).host == host
