"""Routes of the admin API about a lost store: `/api/v1/cluster/recovery`."""

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from popwheel_common.beside_loop import run_beside_loop
from popwheel_common.errors import StatusError
from popwheel_common.pb.apache.rocketmq.v2.definition_pb2 import Code
from popwheel_common.pb.popwheel.v1.broker_pb2 import ListedName, NameListRequest, NameListResponse
from popwheel_common.web.routes import Routes
from popwheel_controller.cluster.recovery import BrokerNames, plan_recovery
from popwheel_controller.cluster.state_writer import StateWriter
from popwheel_controller.http.admin import Group, Topic, shown_group, shown_topic
from popwheel_controller.http.guard import DryRun, RecordedChange
from popwheel_controller.http.inquiry import Inquiry, LastingInquiry
from popwheel_controller.http.refusal import refusal
from popwheel_controller.options import ControllerOptions
from popwheel_rpc.methods import NAME_LIST

_PAGE: Final = 1_000
_SHOWN_MAX: Final = 1_000
"""Limit of topics, groups and findings in an answer; it has the number of all."""

_REFUSED: dict[int | str, dict[str, Any]] = {
    409: refusal("Topics or groups exist under other ids, or were changed meanwhile."),
    429: refusal("There were more than the cluster may hold."),
    500: refusal("A broker group that is registered does not answer (`HA_NOT_AVAILABLE`), or none is registered."),
}


class RecoveryWish(BaseModel):
    """Options of a recovery."""

    model_config = ConfigDict(extra="forbid", strict=True)

    adopt: bool = Field(
        default=False,
        description="Topics and groups that were created again keep their settings, and get their former ids. "
        "Groups with the settings of a first use get their former settings, too.",
    )


class RecoveryFinding(BaseModel):
    """Finding about a topic or group that could not be recovered, or not as it was."""

    kind: str = Field(description="topic or group.")
    name: str = Field(description="Name of the topic or group.")
    what: str = Field(description="What could not be recovered, in a sentence.")


class Recovery(BaseModel):
    """Topics and groups that were restored, or would be."""

    brokers: list[str] = Field(description="The broker groups that were asked.")
    topics: list[Topic] = Field(description="The first 1,000 of those that came back.")
    topics_total: int = Field(description="Number of all topics that came back.")
    groups: list[Group] = Field(description="The first 1,000 of those that came back.")
    groups_total: int = Field(description="Number of all groups that came back.")
    kept_total: int = Field(description="Number of topics and groups that were made since, and stay.")
    findings: list[RecoveryFinding] = Field(description="The first 1,000.")
    findings_total: int = Field(description="Number of all findings.")


def recovery_router(options: ControllerOptions, state_writer: StateWriter, inquiry: Inquiry) -> Routes:
    """Return the route.

    Args:
        options: defaults and limits of topics and groups.
        state_writer: of the cluster's state.
        inquiry: asks the brokers.
    """
    router = Routes(prefix="/cluster", tags=["cluster"])
    turn = asyncio.Lock()

    @router.post("/recovery", responses=_REFUSED)
    async def recover(wish: RecoveryWish, change_record: RecordedChange, dry_run: DryRun) -> Recovery:
        """Restore topics and groups from the logs of brokers, after the controllers' store was lost.

        They get their former ids, and their settings as far as a log has them. If nothing was lost, nothing changes.
        """
        async with turn:  # each call has all names of all brokers in memory
            brokers = await _known_by_all(inquiry)
            state = state_writer.state
            # It takes a second with 100,000 names; the state is immutable meanwhile.
            plan = await run_beside_loop(partial(plan_recovery, state, options, brokers, adopt=wish.adopt))
            if not dry_run:
                await state_writer.change(plan.decide)
        back = Recovery(
            brokers=sorted(brokers),
            topics=[shown_topic(each) for each in plan.topics[:_SHOWN_MAX]],
            topics_total=len(plan.topics),
            groups=[shown_group(each) for each in plan.groups[:_SHOWN_MAX]],
            groups_total=len(plan.groups),
            kept_total=len(plan.recreated_topics) + len(plan.recreated_groups),
            findings=[RecoveryFinding(**asdict(each)) for each in plan.findings[:_SHOWN_MAX]],
            findings_total=len(plan.findings),
        )
        change_record.after = f"{back.topics_total} topics, {back.groups_total} groups, {back.findings_total} findings"
        return back

    return router


async def _known_by_all(inquiry: Inquiry) -> dict[str, BrokerNames]:
    """Ask all broker groups for the names in their logs.

    Raises:
        StatusError: HA_NOT_AVAILABLE, one of them does not answer, or there is none.
    """
    names = sorted({*inquiry.state.brokers, *inquiry.state.away})
    if not names:
        raise StatusError(
            Code.HA_NOT_AVAILABLE, "no broker group is registered: start those that hold messages, and try again"
        )
    asking = inquiry.lasting()
    known: dict[str, BrokerNames] = {}
    silent: list[str] = []
    try:
        for name in names:  # one after the other, as each answer is large
            try:
                known[name] = await _known_by(asking, name)
            except StatusError as error:
                silent.append(f"{name} ({error.message})")
    finally:
        await asking.close()
    if silent:
        raise StatusError(
            Code.HA_NOT_AVAILABLE,
            f"a recovery needs the answers of all broker groups; no answer from {'; '.join(silent)}. Bring them "
            "back, or forget those that will not come back (popwheel admin broker forget)",
        )
    return known


async def _known_by(asking: LastingInquiry, name: str) -> BrokerNames:
    topics, last = await _listed(asking, name, groups=False)
    groups, last = await _listed(asking, name, groups=True)
    return BrokerNames(topics, groups, tuple(last.states))


async def _listed(asking: LastingInquiry, name: str, *, groups: bool) -> tuple[dict[str, ListedName], NameListResponse]:
    """Ask one broker for all its topics, or groups; return them with its last answer."""
    listed: dict[str, ListedName] = {}
    after = ""
    while True:
        request = NameListRequest(groups=groups, after=after, limit=_PAGE)
        answer = await asking.of(name, NAME_LIST, request)
        listed.update((each.name, each) for each in answer.names)
        if answer.next <= after:
            return listed, answer
        after = answer.next
