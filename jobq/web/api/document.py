"""The OpenAPI document of the API, made from what the resources declare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobq import __version__
from jobq.web.api.problems import PROBLEM, Code
from jobq.web.api.resource import Parameter, Resource

VERSION = "v1"
_ABOUT = """Figures and operations of a jobq installation.

Send `Authorization: Bearer TOKEN`; `jobq web user add NAME --token` makes one. Times are RFC 3339 in UTC, durations
end in `_ms`, whole numbers beyond 2^53 are text, null is what isn't known. Errors are RFC 9457 problems with a `code`.
Fields are only ever added to this version."""


def document(resources: Iterable[Resource], root: str) -> dict[str, Any]:
    """Return the document. root: the path of the API."""
    paths: dict[str, dict[str, Any]] = {}
    for one in resources:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "jobq", "version": __version__, "description": _ABOUT},
        "servers": [{"url": root}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": PROBLEM.described()},
            "responses": {
                "Problem": {
                    "description": "What is wrong, by its `code`: " + ", ".join(sorted(one.value for one in Code)),
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }  # fmt: skip


def _operation(one: Resource) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": one.name, "summary": one.summary, "description": f"Role: {one.role.word}.",
        "parameters": [_parameter(parameter) for parameter in one.parameters],
        "responses": {
            str(one.status): {
                "description": "The reply.",
                "content": {"application/json": {"schema": one.reply.described()}},
            },
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }  # fmt: skip
    if one.body is not None:
        schema = one.body.described()
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return made


def _parameter(one: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if one.kind == "number" else "string"}
    if one.kind == "number":
        schema |= {"minimum": one.least, "maximum": one.most}
    if one.default:
        schema["default"] = int(one.default) if one.kind == "number" else one.default
    if one.values:
        schema["enum"] = list(one.values)
    return {
        "name": one.name, "in": one.place, "required": one.place == "path" or one.needed, "description": one.says,
        "schema": schema,
    }  # fmt: skip
