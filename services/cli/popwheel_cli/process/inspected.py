"""Answers of a process to the controller's inspections for operators: pages on itself, and its clients."""

import json
import platform
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from popwheel_cli.options import ClusterOptions
from popwheel_common import logs
from popwheel_common.exposition import PLAIN
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectAnswer, InspectQuestion
from popwheel_common.settings.settings_in_force import shown_settings, without_passwords
from popwheel_common.web.metrics_page import MetricsPage

if TYPE_CHECKING:
    from popwheel_proxy.app import ProxyApp

Pages = Mapping[str, Callable[[], Awaitable[bytes]]]

_PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Limit of a page; the rest is left out."""
_LIBRARIES: Final = ("popwheel", "fastapi", "grpcio", "prometheus-client", "protobuf", "pydantic", "uvloop")


def pages_of(options: ClusterOptions, registry: CollectorRegistry) -> Pages:
    """Return the pages of a process, without secrets and bodies of messages.

    Args:
        options: its settings in force.
        registry: its metrics.
    """
    metrics = MetricsPage(registry)

    async def settings_page() -> bytes:
        versions = {name: found for name in _LIBRARIES if (found := _version(name))}
        page = {
            "versions": {"python": sys.version, "platform": platform.platform(), **versions},
            "settings": shown_settings(options),
            "sources": dict(options.sources),
        }
        return json.dumps(page, indent=2).encode()

    async def log_page() -> bytes:
        return without_passwords("".join(f"{line}\n" for line in logs.last_lines())).encode()

    async def metrics_page() -> bytes:
        return whole_lines(await metrics.text(PLAIN, pairs=False))

    return {"settings": settings_page, "log": log_page, "metrics": metrics_page}


async def answer_to(question: InspectQuestion, pages: Pages, proxy: "ProxyApp | None") -> InspectAnswer:
    """Answer an inspection of the controller.

    Args:
        question: what it asks.
        pages: that this process has.
        proxy: that this process is; None for another.
    """
    if question.HasField("polls"):
        if proxy is None:
            return InspectAnswer(trouble="this process is no proxy, and has no polls")
        return InspectAnswer(polls=await proxy.poll_list.some(question.polls))
    if question.HasField("clients"):
        if proxy is None:
            return InspectAnswer(trouble="this process is no proxy, and has no clients")
        return InspectAnswer(clients=await proxy.client_list.some(question.clients))
    if question.HasField("send"):
        if proxy is None:
            return InspectAnswer(trouble="this process is no proxy, and sends nothing")
        asked = question.send
        return InspectAnswer(sent=await proxy.send_as_operator(asked.request, asked.timeout_ms / 1000, asked.peer))
    page = pages.get(question.page)
    if page is None:
        return InspectAnswer(trouble=f"there is no page {question.page[:32]!r} here")
    return InspectAnswer(page=await page())


def whole_lines(page: bytes, bytes_max: int = _PAGE_BYTES_MAX) -> bytes:
    """Return the first lines of a page up to a length."""
    return page if len(page) <= bytes_max else page[: page.rfind(b"\n", 0, bytes_max) + 1]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
