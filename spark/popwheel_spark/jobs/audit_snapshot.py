"""Snapshot of a group at a cluster's brokers, taken in the order that docs/operate/messages.md asks for."""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from popwheel_spark.jobs.outcome import Exit, JobError
from popwheel_spark.wire.admin_api import AdminApi

_PAGE = 1_000

Progress = tuple[str, str, int, int]
Place = tuple[str, str, int, int]


class AuditSnapshot:
    """Reads a group's state from the brokers, and checks that none changes its master meanwhile.

    Args:
        api: of the controller.
        group: the consumer group.
    """

    def __init__(self, api: AdminApi, group: str) -> None:
        self._api = api
        self._group = group
        self._epochs: dict[str, int] = {}

    def progress(self, topics: Sequence[str]) -> list[Progress]:
        """Return the group's progress in topics and their retries: topic, broker, queue, next offset. Call it first.

        Raises:
            JobError: a broker has another master than before.
            RefusedError, UnreachableError: see `AdminApi.pages`.
        """
        path = f"groups/{quote(self._group, safe='')}/progress"
        return [
            (row["topic"], row["broker"], row["queue_id"], row["next_offset"])
            for topic in topics
            for page in self._pages(path, topic=topic)
            for row in page["queues"]
        ]

    def in_flight(self, topics: Sequence[str]) -> list[Place]:
        """Return the messages in flight: topic, broker, queue, offset. Call it second.

        Raises:
            as of `progress`.
        """
        return [
            (row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
            for topic in topics
            for page in self._pages("inflight", topic=topic, group=self._group)
            for row in page["messages"]
        ]

    def poison_messages(self) -> list[Place]:
        """Return the group's poison messages: topic, broker, queue, offset.

        Raises:
            JobError: a broker does not answer, or there is more than can be listed.
            RefusedError, UnreachableError: see `AdminApi.get`.
        """
        page = self._api.get("quarantine", limit=str(_PAGE))
        for silence in page["unanswered"]:
            said = f"{silence['broker']} does not answer, so nothing can be proved: {silence['reason']}"
            raise JobError(said, Exit.AWAY)
        if page["total"] > len(page["entries"]):
            raise JobError(
                f"{page['total']} poison messages are in quarantine, {_PAGE} can be listed: retry or drop some first "
                "(docs/operate/messages.md)"
            )
        return [
            (row["topic"], row["broker"], row["queue_id"], row["queue_offset"])
            for row in page["entries"]
            if row["taken"] and row["group"] in ("", self._group)
        ]

    def _pages(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        for page in self._api.pages(path, query):
            if page["broker"] and self._epochs.setdefault(page["broker"], page["epoch"]) != page["epoch"]:
                said = f"{page['broker']} has another master than when the audit began: begin anew"
                raise JobError(said, Exit.AWAY)
            yield page
