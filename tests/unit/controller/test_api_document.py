"""The OpenAPI document of the admin API: each route has a sentence and a valid example, each field a description."""

import copy
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Union

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, TypeAdapter, ValidationError

from popwheel_common.http import make_http_app
from popwheel_common.runtime import Runtime
from popwheel_controller.app import ControllerApp
from popwheel_controller.http import api_document
from popwheel_controller.http.api_document import complete, content_of_success, read_examples
from popwheel_controller.http.audit_shapes import ListedMessage
from popwheel_controller.http.consumption_routes import ShownDeadLetter
from popwheel_controller.http.dead_letter_routes import ExportEnd
from popwheel_controller.http.demands import DEMANDS, PREFIX
from popwheel_controller.options import ControllerOptions
from tests.harness.manual_clock import ManualClock
from tests.unit.controller.nowhere import no_broker

Examples = Mapping[str, Mapping[str, Any]]

WITHOUT_A_MODEL: Final = {
    "GET /groups/{name}/dead-letters/export": "answers in lines; a test below reads them",
    "GET /healthz": "answers with text",
    "GET /metrics": "answers with text",
    "GET /readyz": "answers with names of parts, which each process has of its own",
    "GET /topics/{name}/tail": "answers in events; a test below reads them",
}
VERBS: Final = frozenset(
    (
        *("Bring", "Change", "Count", "Create", "Delete", "Elect", "End", "Export", "Forget", "Kill", "List", "Make"),
        *(
            "Pause",
            "Put",
            "Recall",
            "Redrive",
            "Remove",
            "Report",
            "Reset",
            "Restore",
            "Resume",
            "Return",
            "Send",
            "Show",
            "Stream",
        ),
    )
)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    registry = CollectorRegistry()
    runtime = Runtime(ManualClock(), random.Random(0), registry)
    app = ControllerApp(runtime, ControllerOptions(), tmp_path_factory.mktemp("controller"), no_broker)
    return make_http_app("test", "0", registry, {}, [app.admin], complete=complete)


@pytest.fixture
def document(api: FastAPI) -> dict[str, Any]:
    """One that a test may change."""
    return copy.deepcopy(api.openapi())


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path.removeprefix(PREFIX)}", operation


def without_a_sentence(document: Mapping[str, Any]) -> list[str]:
    """Routes that do not begin with a verb and end with a full stop, in their first paragraph."""
    found = []
    for name, operation in operations(document):
        sentence = " ".join(operation.get("description", "").split("\n\n")[0].split())
        if not sentence.endswith((".", "!")) or sentence.split()[0] not in VERBS:
            found.append(f"{name}: {sentence}")
    return found


def without_a_description(document: Mapping[str, Any]) -> list[str]:
    """Parameters of routes and fields of models."""
    found = [
        f"{name}: {each['name']}"
        for name, operation in operations(document)
        for each in operation.get("parameters", ())
        if not (each.get("description") or each["schema"].get("description"))
    ]
    for model, schema in document["components"]["schemas"].items():
        fields = schema.get("properties", {})
        found += [f"{model}.{field}" for field, each in fields.items() if not each.get("description")]
    return found


def without_an_example(document: Mapping[str, Any]) -> list[str]:
    found = []
    for name, operation in operations(document):
        contents = [*content_of_success(operation).values()]
        if not contents or any("example" not in each for each in contents):
            found.append(name)
        if any("example" not in each for each in operation.get("requestBody", {}).get("content", {}).values()):
            found.append(f"{name}: request")
    return found


def models_of(document: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Models of the answer and of the body by route; None where there is none."""
    found: dict[str, tuple[Any, Any]] = {}
    for name, operation in operations(document):
        answer = content_of_success(operation).get("application/json", {})
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        found[name] = (model_of(answer.get("schema", {})), model_of(body.get("schema", {})))
    return found


def model_of(schema: Mapping[str, Any]) -> Any:
    """The class whose schema this is, or the union of some."""
    names = [each["$ref"].rpartition("/")[2] for each in schema.get("anyOf", [schema]) if "$ref" in each]
    return Union[*(models()[name] for name in names)] if names else None


def models() -> dict[str, type[BaseModel]]:
    """The models of all routes that are loaded, by name."""
    waiting: list[type[BaseModel]] = [BaseModel]
    for model in waiting:  # grows while it is gone through
        waiting += model.__subclasses__()
    return {each.__name__: each for each in waiting if each.__module__.startswith("popwheel_controller.http.")}


def invalid(document: Mapping[str, Any], examples: Examples) -> list[str]:
    """Examples that are not what the route's models make of them: a field is wrong, missing or unknown."""
    found = []
    for name, (answer, body) in models_of(document).items():
        example = examples.get(name, {})
        if answer is not None:
            found += [f"{name}: {each}" for each in faults(answer, example.get("response"), is_whole=True)]
        if body is not None:
            found += [f"{name}: request: {each}" for each in faults(body, example.get("request"), is_whole=False)]
    return found


def faults(model: Any, example: Any, *, is_whole: bool) -> Iterator[str]:
    """What is wrong with an example; a request may leave out fields that have a default."""
    adapter: TypeAdapter[Any] = TypeAdapter(model)
    try:
        value = adapter.validate_json(json.dumps(example))
    except ValidationError as error:
        yield str(error)
        return
    if adapter.dump_python(value, mode="json", exclude_unset=not is_whole) != example:
        yield "has fields too few or too many"


def test_each_route_has_a_sentence_and_an_example_and_each_field_a_description(document: dict[str, Any]) -> None:
    assert without_a_sentence(document) == []
    assert without_a_description(document) == []
    assert without_an_example(document) == []


def test_examples_are_of_routes_and_valid(document: dict[str, Any]) -> None:
    names = {name for name, _ in operations(document)}
    assert read_examples().keys() == names
    assert names >= {f"{method} {path}" for method, path in DEMANDS}
    assert invalid(document, read_examples()) == []
    assert sorted(name for name, (answer, _) in models_of(document).items() if answer is None) == sorted(
        WITHOUT_A_MODEL
    )


def test_lines_and_events_are_valid() -> None:
    examples = read_examples()
    letter, end = examples["GET /groups/{name}/dead-letters/export"]["response"].splitlines()
    ShownDeadLetter.model_validate_json(letter)
    ExportEnd.model_validate_json(end)
    begun, message, rest = examples["GET /topics/{name}/tail"]["response"].split("\n\n")
    assert (begun, rest) == ("event: begun\ndata: {}", "")
    ListedMessage.model_validate_json(message.removeprefix("event: message\ndata: "))


def test_gaps_are_found(document: dict[str, Any]) -> None:
    topics = document["paths"][f"{PREFIX}/topics"]
    topics["get"]["description"] = "List Topics"
    del topics["get"]["parameters"][0]["description"]
    topics["get"]["parameters"][0]["schema"].pop("description", None)
    del topics["post"]["requestBody"]["content"]["application/json"]["example"]
    del content_of_success(topics["post"])["application/json"]["example"]
    del document["components"]["schemas"]["Topic"]["properties"]["name"]["description"]
    assert without_a_sentence(document) == ["GET /topics: List Topics"]
    assert without_a_description(document) == ["GET /topics: prefix", "Topic.name"]
    assert without_an_example(document) == ["POST /topics", "POST /topics: request"]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("response", {"queues": "four"}),
        ("response", {"unknown": 1}),
        ("request", {"queues": "four"}),
        ("request", {"unknown": 1}),
    ],
)
def test_examples_that_no_longer_fit_are_found(document: dict[str, Any], part: str, change: Mapping[str, Any]) -> None:
    examples = copy.deepcopy(read_examples())
    examples["POST /topics"][part] |= change
    (found,) = invalid(document, examples)
    assert found.startswith("POST /topics: ")
    del examples["POST /topics"][part]
    assert len(invalid(document, examples)) == 1


async def test_examples_are_read_when_somebody_asks_for_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read() -> dict[str, dict[str, Any]]:
        reads.append(1)
        return read_examples()

    monkeypatch.setattr(api_document, "read_examples", read)
    registry = CollectorRegistry()
    app = ControllerApp(Runtime(ManualClock(), random.Random(0), registry), ControllerOptions(), tmp_path, no_broker)
    api = make_http_app("test", "0", registry, {}, [app.admin], complete=complete)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as http:
        assert (await http.get("/healthz")).status_code == 200
        assert reads == []
        for _ in range(2):
            paths = (await http.get("/openapi.json")).json()["paths"]
            answer = paths[f"{PREFIX}/topics"]["get"]["responses"]["200"]["content"]["application/json"]
            assert answer["example"]["topics"][0]["name"] == "orders"
        assert reads == [1]
