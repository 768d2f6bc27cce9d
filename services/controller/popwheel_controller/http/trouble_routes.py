"""Routes of the admin API about current problems: `/api/v1/trouble` (docs/operate/monitor.md)."""

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, Field

from popwheel_common.clock import Clock
from popwheel_common.web.routes import Routes
from popwheel_common.web.shared_work import SharedWork
from popwheel_controller.activity.activity_book import ActivityBook
from popwheel_controller.activity.findings import Findings
from popwheel_controller.activity.troubles import RULES, Troubles
from popwheel_controller.http.inquiry import Inquiry, Silence
from popwheel_controller.http.status_routes import ClusterStatus


class Problem(BaseModel):
    """Problem of the cluster."""

    id: str = Field(description="Name of the alert, or of the rule where there is no alert.")
    severity: str = Field(description="warning or critical.")
    what: str = Field(description="Description of the problem, in a sentence.")
    object: str = Field(description="The affected group, broker or process; empty for the cluster.")
    since_ms: int | None = Field(
        description="When this controller first saw it, in milliseconds since 1970; null if just now."
    )
    fires: bool = Field(description="It has lasted for as long as the alert of Prometheus asks for.")
    what_to_do: str = Field(description="What to do, in a sentence.")
    link: str = Field(description="The section of the documents that says more.")


class Problems(BaseModel):
    """Return all problems that the controller knows, critical ones first."""

    problems: list[Problem] = Field(description="The problems, critical ones first.")
    unanswered: list[Silence] = Field(description="Brokers whose last sample is missing: of them nothing is known.")


def trouble_router(
    findings: Findings,
    troubles: Troubles,
    inquiry: Inquiry,
    book: ActivityBook,
    status: Callable[[], Awaitable[ClusterStatus]],
    clock: Clock,
) -> Routes:
    """Return the route.

    Args:
        findings: measurements.
        troubles: judges them.
        inquiry: knows the brokers.
        book: the latest samples.
        status: of the processes.
        clock: the time.
    """
    router = Routes(tags=["trouble"])

    async def read() -> Problems:
        processes = (await status()).processes
        now_ms = clock.wall_ms()
        found = troubles.judged(findings.now(), now_ms)
        problems = [
            Problem(
                id=each.rule.id,
                severity=each.rule.severity,
                what=each.what,
                object=each.object,
                since_ms=each.since_ms,
                fires=each.fires,
                what_to_do=each.rule.what_to_do,
                link=each.rule.link,
            )
            for each in found
        ]
        for process in processes:
            if not process.ready:
                name = process.name if process.replica is None else f"{process.name}/{process.replica}"
                problems.append(_not_ready(f"{process.kind}/{name}", process.reason))
        return Problems(
            problems=problems,
            unanswered=[
                Silence(broker=name, reason="it gave no sample within the last ten seconds")
                for name in sorted(inquiry.state.brokers)
                if name not in book.samples
            ],
        )

    shared = SharedWork(read)

    @router.get("/trouble")
    async def list_problems() -> Problems:
        """List the alerts that would fire now, without Prometheus: by the same thresholds, from 10-second samples."""
        return await shared.result()

    return router


def _not_ready(process: str, reason: str) -> Problem:
    rule = RULES["ProcessNotReady"]
    return Problem(
        id=rule.id,
        severity=rule.severity,
        what=f"{rule.what.format(object=process).rstrip('.')}: {reason}.",
        object=process,
        since_ms=None,
        fires=True,
        what_to_do=rule.what_to_do,
        link=rule.link,
    )
