"""docs/reference/http-api.md: every route of the admin API, from its OpenAPI document and its table of roles."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from popwheel_common.clock import SystemClock
from popwheel_common.http import make_http_app
from popwheel_common.pb.popwheel.v1.controller_pb2 import BrokerInfo
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.http.api_document import complete
from popwheel_controller.http.demands import DEMANDS, PREFIX
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.service import Channel
from tools.reference.markdown import head, table

_HEAD = f"""\
Paths stand below `http://HOST:8080{PREFIX}`, port `controller.http_port`. A running controller shows them with all
fields and examples at `/docs`, and as OpenAPI at `/openapi.json`. Lists come in pages: `limit` says how many, and
`next` of an answer is the `after` of the next question. A refusal has a status of HTTP, and a body `{{code, message}}`
with a [status](statuses.md). Routes with `dry_run` can show what they would change.

*Role* is the least that a token or user needs, where `access.token_file` is set ([access](../operate/access.md)).
Without it everybody who reaches the port may do everything.
"""
_ALWAYS = """\
Every process has these as well: `/healthz` (it runs), `/readyz` (it serves, or says why not), `/metrics`
([metrics](metrics.md)).
"""


def document() -> dict[str, Any]:
    """The OpenAPI document of a controller."""
    registry = CollectorRegistry()
    with tempfile.TemporaryDirectory() as folder:
        app = ControllerApp(
            Runtime(SystemClock(), random.Random(0), registry), ControllerOptions(), Path(folder) / "data", _no_broker
        )
        return make_http_app("controller", "0", registry, {}, [app.admin], complete=complete).openapi()


def http_api_page() -> str:
    """The whole page, in Markdown."""
    return "\n".join(
        [
            head(
                "HTTP API",
                "the controller's OpenAPI document",
                _HEAD,
            ),
            table(("route", "role", "parameters", "what it does"), _rows(document()["paths"])),
            _ALWAYS,
        ]
    )


def _rows(paths: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for path in sorted(paths):
        for method, route in paths[path].items():
            demand = DEMANDS.get((method.upper(), path.removeprefix(PREFIX)))
            if demand is not None:
                asked = [f"`{each['name']}`" for each in route.get("parameters", ()) if each["in"] == "query"]
                text = (route.get("description") or route.get("summary") or "").split("\n\n")[0].strip()
                where = f"`{method.upper()} {path.removeprefix(PREFIX)}`"
                yield where, demand.role.name.lower(), ", ".join(asked), text


def _no_broker(info: BrokerInfo) -> Channel:
    raise NotImplementedError(info.name)
