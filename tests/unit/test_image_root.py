"""What the image leaves out is not needed."""

import re

from tests.unit.source import ROOT
from tools.image_root import LEFT_OUT


def test_of_the_kubernetes_client_nothing_is_used_that_the_image_leaves_out() -> None:
    assert "kubernetes/client/api" in LEFT_OUT
    used = set()
    for path in (ROOT / "services").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^\s*from kubernetes import", text, re.MULTILINE):
            used |= set(re.findall(r"\bclient\.([A-Z]\w*)", text))
    assert used == {"ApiClient", "ApiException", "Configuration"}
