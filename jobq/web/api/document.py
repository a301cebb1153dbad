"""The OpenAPI document of the API, made from the declared resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobq import __version__
from jobq.web.api.problems import Code, Problem
from jobq.web.api.resource import Parameter, Resource
from jobq.web.api.schema import described

VERSION = "v1"
_ABOUT = """Figures and operations of a jobq installation.

Send `Authorization: Bearer TOKEN`; `jobq web token add NAME` makes one. Times are RFC 3339 in UTC, durations
end in `_ms`, whole numbers beyond 2^53 are text, and unknown values are null. Errors are RFC 9457 problems with a
`code`. Fields are only ever added to this version."""


def document(resources: Iterable[Resource], root: str) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        root: The path of the API.
    """
    paths: dict[str, dict[str, Any]] = {}
    declared = list(resources)
    replies, components = described(
        [Problem, *(resource.types["return"] for resource in declared)], are_replies=True
    )
    taking = [resource for resource in declared if "body" in resource.types]
    taken, more = described([resource.types["body"] for resource in taking], are_replies=False)
    bodies = dict(zip([resource.name for resource in taking], taken, strict=True))
    for resource, reply in zip(declared, replies[1:], strict=True):
        paths.setdefault(resource.path, {})[resource.method.lower()] = _operation(
            resource, reply, bodies.get(resource.name)
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "jobq", "version": __version__, "description": _ABOUT},
        "servers": [{"url": root}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": components | more,
            "responses": {
                "Problem": {
                    "description": "The error's `code`: " + ", ".join(sorted(code.value for code in Code)),
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }  # fmt: skip


def _operation(
    resource: Resource, reply: dict[str, Any], body: dict[str, Any] | None
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": resource.name, "summary": resource.summary, "description": f"Role: {resource.role.word}.",
        "parameters": [_parameter(parameter) for parameter in resource.parameters],
        "responses": {
            str(resource.status): {
                "description": "The reply.",
                "content": {"application/json": {"schema": reply}},
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }  # fmt: skip
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if parameter.kind == "number" else "string"}
    if parameter.kind == "number":
        schema |= {"minimum": parameter.least, "maximum": parameter.most}
    if parameter.default:
        schema["default"] = (
            int(parameter.default) if parameter.kind == "number" else parameter.default
        )
    if parameter.values:
        schema["enum"] = list(parameter.values)
    return {
        "name": parameter.name, "in": parameter.place, "required": parameter.place == "path" or parameter.needed,
        "description": parameter.says, "schema": schema,
    }  # fmt: skip
