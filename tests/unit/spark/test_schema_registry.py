"""Schemas of a registry: each fetched once, up to a limit, and a sentence for what is not there."""

from collections.abc import Callable

import pytest

from popwheel_spark.errors import OptionError, RefusedError, UnreachableError
from popwheel_spark.schema_registry import RegisteredSchema, SchemaRegistry
from tests.harness.ports import free_ports
from tests.harness.schema_registry import registry_pages, running_registry

PAGES = registry_pages("orders-value", {3: '"int"', 7: '"long"'})


def test_versions_come_in_order_and_each_is_fetched_once() -> None:
    with running_registry(PAGES) as (url, asked):
        registry = SchemaRegistry(f"{url}/", {"authorization": "Basic abc"})
        assert registry.versions("orders-value") == [
            RegisteredSchema(3, "AVRO", '"int"'),
            RegisteredSchema(7, "AVRO", '"long"'),
        ]
        assert registry.schema(7).text == '"long"'
        assert registry.schema(7) is registry.schema(7)
    assert [path for path, _ in asked].count("/subjects/orders-value/versions/2") == 1
    assert not any("ids" in path for path, _ in asked)
    assert {header for _, header in asked} == {"Basic abc"}


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda registry: registry.schema(9), r"no schema has the id 9; .*not found"),
        (lambda registry: registry.versions("orders"), "there is no subject orders"),
        (lambda registry: registry.schema(5), r"it answered 500 \(.*broken"),
        (lambda registry: registry.schema(6), "schemas/ids/6 is not JSON"),
        (lambda registry: registry.schema(8), "the schema 8 refers to others"),
        (
            lambda registry: registry.versions("many"),
            "many has 3 versions, 2 are fetched at the most: raise schemas_max",
        ),
        (lambda registry: [registry.schema(each) for each in (3, 7, 8)], "2 schemas were fetched already"),
    ],
)
def test_what_it_refuses_is_reported(ask: Callable[[SchemaRegistry], object], sentence: str) -> None:
    pages = {
        **PAGES,
        **registry_pages("many", {20: "a", 21: "b", 22: "c"}),
        "/schemas/ids/5": (500, {"message": "broken"}),
        "/schemas/ids/6": (200, b"<html>"),
        "/schemas/ids/8": (200, {"schema": "{}", "references": [{"name": "other"}]}),
    }
    with running_registry(pages) as (url, _), pytest.raises(RefusedError, match=sentence):
        ask(SchemaRegistry(url, schemas_max=2))


def test_one_that_is_away_is_reported() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnreachableError, match="does not answer"):
        SchemaRegistry(f"http://127.0.0.1:{port}").schema(1)


@pytest.mark.parametrize("url", ["here:8081", "ftp://h", "http://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(OptionError, match="is no address of a registry"):
        SchemaRegistry(url)
