"""What an audit asks, and which answers it does not take."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from popwheel_spark.jobs.audit_snapshot import AuditSnapshot
from popwheel_spark.jobs.outcome import JobError
from popwheel_spark.wire.admin_api import AdminApi

PLACE = {"topic": "t", "broker": "b", "queue_id": 1}


class Api(AdminApi):
    """Answers as it is told."""

    def __init__(self, epochs: tuple[int, ...] = (3, 3), **quarantine: Any) -> None:
        self.asked: list[str] = []
        self._epochs = iter(epochs)
        self._quarantine = {"entries": [], "total": 0, "unanswered": []} | quarantine

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        self.asked.append(f"{path} {query['topic']}")
        rows = {"queues": [PLACE | {"next_offset": 7}], "messages": [PLACE | {"queue_offset": 5}]}
        yield {"broker": "b", "epoch": next(self._epochs), **rows}
        yield {"broker": "", "epoch": 0, "queues": [], "messages": []}

    def get(self, path: str, **query: str) -> Any:
        return self._quarantine


def test_answers_are_rows() -> None:
    api = Api()
    snapshot = AuditSnapshot(api, "g")
    assert snapshot.progress(["t"]) == [("t", "b", 1, 7)]
    assert snapshot.in_flight(["t"]) == [("t", "b", 1, 5)]
    assert api.asked == ["groups/g/progress t", "inflight t"]


def test_another_master_ends_the_audit() -> None:
    snapshot = AuditSnapshot(Api((3, 4)), "g")
    snapshot.progress(["t"])
    with pytest.raises(JobError, match="b has another master"):
        snapshot.in_flight(["t"])


def test_what_is_quarantined_of_others_does_not_matter() -> None:
    rows = [
        PLACE | {"queue_offset": number, "taken": taken, "group": group}
        for number, (taken, group) in enumerate([(True, "g"), (True, ""), (False, "g"), (True, "h")])
    ]
    assert AuditSnapshot(Api(entries=rows, total=4), "g").poison_messages() == [("t", "b", 1, 0), ("t", "b", 1, 1)]


@pytest.mark.parametrize(
    ("quarantine", "words"),
    [
        ({"unanswered": [{"broker": "b", "reason": "away"}]}, "b does not answer"),
        ({"total": 1_001}, "1001 poison messages are in quarantine"),
    ],
)
def test_what_cannot_be_known_ends_the_audit(quarantine: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        AuditSnapshot(Api(**quarantine), "g").poison_messages()
