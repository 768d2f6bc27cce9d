"""A DAG of Airflow 3: each midnight archive the topics, audit the day for one group, and report how it was served.

Where tasks run `popwheel-spark` must be on the PATH (docs/use/spark.md says how it is installed). What these lines name
comes from their environment, and so do POPWHEEL_ACCESS_KEY, POPWHEEL_SECRET and POPWHEEL_TOKEN, which the jobs read by
themselves. A day without messages fails at the report, which has nothing to tell then.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

CLUSTER = {
    "ENDPOINTS": os.environ.get("POPWHEEL_ENDPOINT", "127.0.0.1:8081"),
    "ADMIN": os.environ.get("POPWHEEL_ADMIN", "http://127.0.0.1:8080"),
    "LAKE": os.environ.get("POPWHEEL_LAKE", "/data/popwheel"),
    "TOPICS": os.environ.get("POPWHEEL_TOPICS", "orders"),
    "GROUP": os.environ.get("POPWHEEL_GROUP", "billing"),
}
DAY = {
    "DAY": "{{ data_interval_start.strftime('%Y-%m-%d') }}",
    "FROM": "{{ data_interval_start.strftime('%Y-%m-%dT%H:%M:%SZ') }}",
    "UNTIL": "{{ data_interval_end.strftime('%Y-%m-%dT%H:%M:%SZ') }}",
}
WHERE = '--endpoints "$ENDPOINTS" --admin "$ADMIN"'

LOST, INPUT = 1, 2
"""Exit codes that another try does not mend (docs/use/spark-jobs.md); 3 says that the cluster does not answer."""


class PopwheelSpark(BashOperator):  # type: ignore[misc]  # where Airflow is not installed, it is of any type
    """Runs a job. It is tried again when the cluster does not answer, and not when messages are lost.

    Args:
        words: of the command `popwheel-spark`, as bash reads them.
        given: arguments of every operator.
    """

    def __init__(self, *, words: str, **given: Any) -> None:
        super().__init__(
            bash_command=f"popwheel-spark {words} {WHERE}",
            env=CLUSTER | DAY,
            append_env=True,
            skip_on_exit_code=(LOST, INPUT),
            **given,
        )

    def execute(self, context: Any) -> Any:
        """Run it; what would be skipped is a failure for good."""
        try:
            return super().execute(context)
        except AirflowSkipException as error:
            raise AirflowFailException("messages are lost, or an input is wrong: the log says which") from error


with DAG(
    "popwheel_daily",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # an archive has one writer
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    doc_md=__doc__,
) as dag:
    archive = PopwheelSpark(
        task_id="archive",
        words='archive --topics "$TOPICS" --to "$LAKE/archive" --until-now',
    )
    audit = PopwheelSpark(
        task_id="audit",
        words='audit --topics "$TOPICS" --group "$GROUP" --from "$FROM" --until "$UNTIL" --to "$LAKE/audit/$DAY"',
    )
    report = PopwheelSpark(
        task_id="delivery_report",
        words='delivery-report --topics "$TOPICS" --groups "$GROUP" --archive "$LAKE/archive" '
        '--from "$FROM" --until "$UNTIL" --to "$LAKE/report/$DAY"',
    )
    archive >> audit >> report
