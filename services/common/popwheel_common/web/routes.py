"""Routes of an API in parts, of which each is worked out once.

FastAPI works out each route of an `APIRouter`, and again for each router and application that includes it: its
dependencies, and a validator for each parameter. With the admin API, that is an eighth of a second of each start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import FastAPI

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(slots=True)
class _Route:
    """Arguments for one route of FastAPI."""

    path: str
    method: str
    endpoint: Callable[..., Any]
    tags: list[str]
    dependencies: list[Any]
    options: dict[str, Any] = field(default_factory=dict)


class Routes:
    """Routes in their order, with what they have in common.

    Args:
        prefix: the beginning of their paths.
        tags: under which documents list them, before their own.
        dependencies: what is called before each, before their own.
    """

    def __init__(self, prefix: str = "", tags: Sequence[str] = (), dependencies: Sequence[Any] = ()) -> None:
        self._prefix = prefix
        self._tags = list(tags)
        self._dependencies = list(dependencies)
        self._routes: list[_Route] = []

    def get(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Decorate what answers GET; options as of `FastAPI.add_api_route`."""
        return self._decorator("GET", path, options)

    def post(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Decorate what answers POST."""
        return self._decorator("POST", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Decorate what answers PATCH."""
        return self._decorator("PATCH", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
        """Decorate what answers DELETE."""
        return self._decorator("DELETE", path, options)

    def include(self, routes: "Routes") -> None:
        """Add the routes of a part, behind those that there are."""
        for each in routes._routes:
            self._add(each.method, each.path, each.endpoint, each.tags, each.dependencies, each.options)

    def add_to(self, app: FastAPI) -> None:
        """Give them to the application that serves them."""
        for each in self._routes:
            app.add_api_route(
                each.path,
                each.endpoint,
                methods=[each.method],
                tags=list(each.tags),
                dependencies=each.dependencies,
                **each.options,
            )

    def _decorator(self, method: str, path: str, options: dict[str, Any]) -> Callable[[Endpoint], Endpoint]:
        def decorated(endpoint: Endpoint) -> Endpoint:
            own = dict(options)
            self._add(method, path, endpoint, own.pop("tags", []), own.pop("dependencies", []), own)
            return endpoint

        return decorated

    def _add(
        self,
        method: str,
        path: str,
        endpoint: Callable[..., Any],
        tags: Sequence[str],
        dependencies: Sequence[Any],
        options: dict[str, Any],
    ) -> None:
        all_tags, needs = [*self._tags, *tags], [*self._dependencies, *dependencies]
        self._routes.append(_Route(self._prefix + path, method, endpoint, all_tags, needs, options))
