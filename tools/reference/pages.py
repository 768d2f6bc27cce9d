"""Pages of docs/reference, each with the function that makes it."""

from collections.abc import Callable
from pathlib import Path

from tools.reference.cli import cli_page
from tools.reference.http_api import http_api_page
from tools.reference.limits import limits_page
from tools.reference.metrics import metrics_page
from tools.reference.options import options_page
from tools.reference.spark_options import spark_options_page
from tools.reference.statuses import statuses_page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "options.md": options_page,
    "limits.md": limits_page,
    "metrics.md": metrics_page,
    "statuses.md": statuses_page,
    "http-api.md": http_api_page,
    "cli.md": cli_page,
    "spark-options.md": spark_options_page,
}
