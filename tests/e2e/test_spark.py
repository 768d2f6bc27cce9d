"""Spark applications of the chart on a real cluster: in one process, and with executors in pods of their own."""

import json
import os

import pytest

from tests.harness.release import Release

pytestmark = pytest.mark.timeout(900)

_ROWS = 20_000
_ROLE = ("pods", "configmaps", "services", "persistentvolumeclaims")
_VERBS = ("create", "get", "list", "watch", "delete", "deletecollection", "patch", "update")


def test_applications_see_the_same_in_one_process_and_on_the_cluster(release: Release) -> None:
    image = os.environ.get("SPARK_IMAGE")
    if not image:
        pytest.skip("needs SPARK_IMAGE, an image with Spark and the application (docs/use/spark.md)")
    applications = [
        {
            "name": name,
            "image": image,
            "file": "local:///opt/app/application.py",
            "arguments": [f"Spark-{name}", str(_ROWS)],
            "schedule": "0 0 1 1 *",
            "master": master,
            "conf": {
                "spark.executor.instances": "2",
                "spark.executor.memory": "512m",
                "spark.kubernetes.executor.request.cores": "100m",
                "spark.kubernetes.container.image.pullPolicy": "IfNotPresent",
            },
        }
        for name, master in (("alone", "local[2]"), ("cluster", "k8s://https://kubernetes.default.svc"))
    ]
    release.kubectl("create", "serviceaccount", "spark")
    release.kubectl("create", "role", "spark", f"--verb={','.join(_VERBS)}", f"--resource={','.join(_ROLE)}")
    account = f"--serviceaccount={release.namespace}:spark"
    release.kubectl("create", "rolebinding", "spark", "--role=spark", account)
    release.install("--set-json", f"spark.applications={json.dumps(applications)}")
    for name, executors in (("alone", 1), ("cluster", 2)):
        release.make_topic(f"Spark-{name}", "NORMAL", 8)
        job = f"spark-{name}"
        release.kubectl("create", "job", f"--from=cronjob/{release.prefix}-{name}", job)
        release.kubectl("wait", "--for=condition=Complete", f"job/{job}", "--timeout=280s")
        (said,) = [
            line for line in release.kubectl("logs", f"job/{job}", "-c", "spark").splitlines() if line[:1] == "{"
        ]
        assert json.loads(said) == {"executors": executors, "ids": _ROWS, "batch": True, "stream": True}
