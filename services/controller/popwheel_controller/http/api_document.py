"""Examples in the OpenAPI document of the admin API, and the refusals that requests get in place of FastAPI's."""

import json
from pathlib import Path
from typing import Any, Final

from popwheel_controller.http.demands import PREFIX

EXAMPLES_FILE: Final = Path(__file__).resolve().parent / "examples.json"
"""Examples by method and path: an answer, and a body where the route takes one. Most are of a small cluster."""
_FRAMEWORK: Final = ("HTTPValidationError", "ValidationError")
_BAD_REQUEST: Final = {
    "description": "A value that cannot be.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
}


def read_examples() -> dict[str, dict[str, Any]]:
    """Read the examples: `request` and `response` by `METHOD /path`, without `/api/v1`."""
    examples: dict[str, dict[str, Any]] = json.loads(EXAMPLES_FILE.read_text(encoding="utf-8"))
    return examples


def complete(document: dict[str, Any]) -> None:
    """Add examples to a document, and replace the 422 of the framework by the 400 that requests get.

    The file is read here and not at the start: few controllers are asked for their document.
    """
    examples = read_examples()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            if route["responses"].pop("422", None) is not None:
                route["responses"].setdefault("400", _BAD_REQUEST)
            example = examples.get(f"{method.upper()} {path.removeprefix(PREFIX)}")
            if example is not None:
                _add(route, example)
    for name in _FRAMEWORK:
        document["components"]["schemas"].pop(name, None)


def content_of_success(route: dict[str, Any]) -> dict[str, Any]:
    """Return the kinds of content with which a route answers a request that succeeds."""
    (success,) = (answer for status, answer in route["responses"].items() if status.startswith("2"))
    content: dict[str, Any] = success.get("content", {})
    return content


def _add(route: dict[str, Any], example: dict[str, Any]) -> None:
    for content in content_of_success(route).values():
        content["example"] = example["response"]
    if "request" in example:
        route["requestBody"]["content"]["application/json"]["example"] = example["request"]
