"""Spark shows who it is: to proxies and to the admin API."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from popwheel_proxy.access.signature import claim_of, is_by
from popwheel_spark.connection_options import ConnectionOptions
from popwheel_spark.given_options import GivenOptions
from popwheel_spark.wire.admin_api import AdminApi
from popwheel_spark.wire.proxies import Proxies

SECRET = "long enough"


def options(**given: str) -> ConnectionOptions:
    return ConnectionOptions.take(GivenOptions({"endpoints": "h:1", **given}))


def test_calls_are_signed_anew_each_time() -> None:
    headers = Proxies(options(accessKey="spark", secretKey=SECRET)).metadata
    claim = claim_of(headers["authorization"])
    assert claim.access_key == "spark"
    assert is_by(SECRET.encode(), headers["x-mq-date-time"], claim.signature)


def test_without_credentials_nothing_is_shown() -> None:
    assert "authorization" not in Proxies(options()).metadata


def test_secrets_are_not_in_what_is_printed() -> None:
    given = options(accessKey="spark", secretKey=SECRET, adminToken="a-token-of-the-tests")
    assert SECRET not in repr(given)
    assert "a-token-of-the-tests" not in repr(given)


def test_the_admin_api_is_shown_the_token() -> None:
    shown: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["authorization"])
            body = json.dumps({"topics": [{"name": "orders"}], "next": None}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        admin = f"http://127.0.0.1:{server.server_port}"
        assert list(AdminApi(options(admin=admin, adminToken="a-token-of-the-tests")).topics()) == ["orders"]
        assert list(AdminApi(options(admin=admin)).topics()) == ["orders"]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert shown == ["Bearer a-token-of-the-tests", None]
