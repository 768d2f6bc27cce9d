"""Routes of the admin API about settings in force, for administrators only: `/api/v1/settings`.

Secrets are replaced, as in a debug bundle.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Query
from pydantic import BaseModel, Field

from popwheel_common.errors import StatusError
from popwheel_common.pb.popwheel.v1.controller_pb2 import InspectQuestion
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.inspections import Inspections
from popwheel_controller.cluster.processes import Processes
from popwheel_controller.http.debug_routes import OWN
from popwheel_controller.http.group_routes import GroupViews

_PAGE = "settings"
_AT_ONCE = 4
_PROCESSES_MAX = 100
_WITHIN_S = 4.0
_DEFAULT = "default"


class Setting(BaseModel):
    """A setting of a process."""

    key: str = Field(description="As in a file of settings: `broker.flush`.")
    value: Any = Field(description="A secret is replaced.")
    source: str = Field(
        description="Where it came from: `default`, `file`, `environment` or `command line` (`--set` and flags, also "
        "those by which a process starts its children)."
    )


class ProcessSettings(BaseModel):
    """The settings in force of one process."""

    process: str = Field(description="`controller`, `proxy/NAME`, `broker/NAME/REPLICA`.")
    settings: list[Setting] = Field(description="The settings of the process.")


class SilentProcess(BaseModel):
    """A process that did not answer."""

    process: str = Field(description="Key of the process.")
    reason: str = Field(description="Why it did not answer, in a sentence.")


class Settings(BaseModel):
    """The settings of all processes that answered, without other controllers that do not lead."""

    processes: list[ProcessSettings] = Field(description="The processes that answered.")
    unanswered: list[SilentProcess] = Field(description="Processes that did not answer.")


def settings_router(
    inspections: Inspections,
    processes: Processes,
    views: GroupViews,
    own_pages: Mapping[str, Callable[[], Awaitable[bytes]]],
) -> Routes:
    """Return the route.

    Args:
        inspections: processes that can be asked.
        processes: those that there are.
        views: knows the registered brokers.
        own_pages: of this process.
    """
    router = Routes(tags=["cluster"])
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def settings_of(key: str) -> ProcessSettings | SilentProcess:
        inspected = inspections.get(key)
        async with at_once:
            try:
                if key == OWN:
                    page = await own_pages[_PAGE]()
                elif inspected is None or _PAGE not in inspected.pages:
                    return SilentProcess(process=key, reason="it takes no questions now, or is of an older release")
                else:
                    page = (await inspections.ask(inspected, InspectQuestion(page=_PAGE))).page
                return ProcessSettings(process=key, settings=_settings(page))
            except StatusError as error:
                return SilentProcess(process=key, reason=error.message)
            except (ValueError, AttributeError):
                return SilentProcess(process=key, reason="its answer is none: it may be of another release")

    @router.get("/settings")
    async def list_settings(
        process: str = Query(default="", max_length=300, description="Of this one alone; all if left out."),
    ) -> Settings:
        """List the settings in force of each process, and where each value came from."""
        found = {OWN} if _PAGE in own_pages else set()
        for member in processes.members(views.registrations()):
            if not member.is_within:
                found.add(f"{member.kind}/{member.name}{'' if member.replica is None else f'/{member.replica}'}")
        found |= {each.key for each in inspections.all if each.pages}
        keys = sorted(each for each in found if process in ("", each))
        tasks = {key: asyncio.create_task(settings_of(key)) for key in keys[:_PROCESSES_MAX]}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=_WITHIN_S)
        answers: list[ProcessSettings | SilentProcess] = []
        for key, task in tasks.items():
            if task.done():
                answers.append(task.result())
            else:
                task.cancel()
                answers.append(SilentProcess(process=key, reason="others took too long; ask for it by its name"))
        for key in keys[_PROCESSES_MAX:]:
            answers.append(SilentProcess(process=key, reason="they are too many; ask for it by its name"))
        return Settings(
            processes=[each for each in answers if isinstance(each, ProcessSettings)],
            unanswered=[each for each in answers if isinstance(each, SilentProcess)],
        )

    return router


def _settings(page: bytes) -> list[Setting]:
    """The settings of a page, one by one.

    Raises:
        ValueError, AttributeError: that is no page of settings.
    """
    content = json.loads(page)
    sources = content.get("sources", {})
    flat: dict[str, Any] = {}
    _flatten(content.get("settings", {}), "", flat)
    return [Setting(key=key, value=value, source=sources.get(key, _DEFAULT)) for key, value in flat.items()]


def _flatten(settings: Mapping[str, Any], prefix: str, flat: dict[str, Any]) -> None:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            _flatten(value, f"{prefix}{name}.", flat)
        else:
            flat[f"{prefix}{name}"] = value
