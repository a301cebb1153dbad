"""Declare a resource of the API: its path, role, parameters, the shape of its reply, and what answers it."""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jobq.client.numbered_calls import is_denied
from jobq.config import duration_s, parse_time
from jobq.durations import DAY_MS
from jobq.errors import (
    ConfigError,
    JobqError,
    ScriptError,
    ServerFullError,
    UnavailableError,
)
from jobq.web.access.bounds import TooManyScansError
from jobq.web.access.identity import Identity, UserRole
from jobq.web.api.problems import problem
from jobq.web.api.shapes import RecordShape, Shape
from jobq.web.history import Span
from jobq.web.operations.service import NotAllowedError
from jobq.web.routes import ROUTES, identity_of
from jobq.web.site import Site, site_of

logger = logging.getLogger("jobq.web")
ROOT = "/api/v1"
MOST_ITEMS = 1_000
#: The longest range of time that can be asked for.
MOST_DAYS = 400


class NotThereError(JobqError):
    """What a request names doesn't exist."""


class ConflictError(JobqError):
    """A request contradicts an earlier one."""


class Parameter(NamedTuple):
    """One parameter. needed: a request without it is refused. least, most: of a number. values: those allowed."""

    name: str
    says: str
    kind: Literal["text", "number", "duration", "names"] = "text"
    place: Literal["query", "path"] = "query"
    default: str = ""
    needed: bool = False
    least: int = 1
    most: int = MOST_ITEMS
    values: tuple[str, ...] = ()

    def read(self, given: str) -> Any:
        """Return the value. ConfigError for one that isn't allowed."""
        text = given or self.default
        if self.needed and not text:
            raise ConfigError(f"the parameter {self.name} is missing: {self.says}")
        if self.kind == "number":
            if not (
                text.isascii() and text.isdigit() and self.least <= int(text[:12]) <= self.most
            ):
                raise ConfigError(
                    f"{self.name}={text!r:.100} is not a number from {self.least} to {self.most}"
                )
            return int(text)
        if self.kind == "duration":
            seconds = duration_s(text) if text else 0.0
            if text and not 0 < seconds <= MOST_DAYS * 86_400:
                raise ConfigError(
                    f"{self.name}={text!r:.100} is out of range; take 30s to {MOST_DAYS}d"
                )
            return seconds
        if self.kind == "names":
            return [name.strip() for name in text.split(",") if name.strip()]
        if self.values and text not in self.values:
            raise ConfigError(
                f"{self.name}={text!r:.100} is unknown; use one of {', '.join(self.values)}"
            )
        return text


@dataclass(frozen=True)
class ApiCall:
    """One request: its parameters by name, who sends it, and its body."""

    request: Request = field(repr=False)
    site: Site = field(repr=False)
    identity: Identity
    given: Mapping[str, Any]
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @property
    def now_ms(self) -> int:
        """The server's time."""
        return self.site.client.clock_ms()

    @cached_property
    def span(self) -> Span:
        """The range of time that `range`, or `since` and `until`, ask for."""
        return span_of(self.now_ms, self["range"], self["since"], self["until"])


Answerer = Callable[[ApiCall], Any]


@dataclass(frozen=True)
class Resource:
    """One resource and method."""

    name: str
    path: str
    method: str
    role: UserRole
    summary: str
    reply: Shape
    parameters: tuple[Parameter, ...]
    answer: Answerer = field(repr=False)
    body: RecordShape | None = None
    status: int = 200

    def handle(self, request: Request) -> Response:
        """Answer a request."""
        try:
            given = {one.name: one.read(_given(request, one)) for one in self.parameters}
            body = _body(request) if self.body is not None else {}
            call = ApiCall(request, site_of(request), identity_of(request), given, body)
            return JSONResponse(self.reply.written(self.answer(call)), self.status)
        except JobqError as error:
            return refusal(error)


class Resources:
    """All resources, in the order in which they are declared."""

    def __init__(self) -> None:
        self.declared: list[Resource] = []


RESOURCES = Resources()


def resource(
    path: str, reply: Shape, *parameters: Parameter, method: str = "GET", role: UserRole = UserRole.READ,
    body: RecordShape | None = None, status: int = 200,
) -> Callable[[Answerer], Answerer]:  # fmt: skip
    """Declare what answers `path`, below ROOT. Its name is the function's, its summary the docstring's first line."""

    def declare(answer: Answerer) -> Answerer:
        summary = (answer.__doc__ or "").strip().splitlines()[0].rstrip(".")
        named = {parameter.name for parameter in parameters}
        in_path = tuple(
            Parameter(name, f"Name of the {name}.", place="path")
            for name in path_names(path)
            if name not in named
        )
        made = Resource(
            answer.__name__,
            path,
            method,
            role,
            summary,
            reply,
            (*in_path, *parameters),
            answer,
            body,
            status,
        )
        RESOURCES.declared.append(made)
        ROUTES.add(ROOT + path, method, role, f"api_{made.name}", made.handle, program=True)
        return answer

    return declare


def path_names(path: str) -> list[str]:
    """Return the names of the parts of a path that vary."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


RANGE = (
    Parameter("range", "How far back, as 15m, 6h or 7d.", "duration", default="1h"),
    Parameter("since", "Begin, as 2026-11-23T14:00Z, or 2h for two hours ago; instead of range."),
    Parameter("until", "End, like since.  Default: now."),
)
PAGING = (
    Parameter("limit", "Most rows of this reply.", "number", default="100"),
    Parameter("cursor", "`next` of the reply before."),
)


def span_of(now_ms: int, range_s: float, since: str, until: str) -> Span:
    """Return a range of time. ConfigError if it ends before it begins, or is longer than MOST_DAYS."""
    end = _moment(until, now_ms) if until else now_ms + 1
    begin = _moment(since, now_ms) if since else end - round(1000 * range_s)
    if not begin < end:
        raise ConfigError(f"since={since!r:.50} is not before until={until!r:.50}; swap them")
    if end - begin > MOST_DAYS * DAY_MS:
        raise ConfigError(f"the range is longer than {MOST_DAYS} days; choose a shorter one")
    return Span(begin, end)


def _moment(text: str, now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return round(parse_time(text, now=now, zone=UTC).timestamp() * 1000)


def cursor_text(value: Any) -> str:
    """Return what a client gives back for the next page."""
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def read_cursor(text: str) -> Any:
    """Undo `cursor_text`; None for ''. ConfigError for anything else."""
    if not text:
        return None
    try:
        return json.loads(urlsafe_b64decode(text[:4_000] + "=" * (-len(text) % 4)))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"cursor={text!r:.100} is not one that this API gave; leave it out"
        ) from error


def page_of_rows(rows: list[Any], call: ApiCall) -> dict[str, Any]:
    """Return a page of rows that are all known, by their number."""
    at = read_cursor(call["cursor"]) or 0
    if not isinstance(at, int) or at < 0:
        raise ConfigError(
            f"cursor={call['cursor']!r:.100} is not one that this list gave; leave it out"
        )
    end = at + call["limit"]
    return {"items": rows[at:end], "next": cursor_text(end) if end < len(rows) else None}


def refusal(error: JobqError) -> Response:
    """Return what an error means to a client."""
    if isinstance(error, NotThereError):
        return problem(404, str(error))
    if isinstance(error, ConflictError):
        return problem(409, str(error))
    if isinstance(error, NotAllowedError) or is_denied(error):
        return problem(403, str(error))
    if isinstance(error, TooManyScansError):
        return problem(429, str(error))
    if isinstance(error, ConfigError):
        return problem(400, str(error))
    if isinstance(error, UnavailableError | ServerFullError):
        return problem(503, str(error))
    if not isinstance(error, ScriptError):
        logger.warning("the API can't answer: %s", error)
    return problem(500, str(error))


def _given(request: Request, one: Parameter) -> str:
    if one.place == "path":
        return str(request.path_params[one.name])
    found = request.query_params.getlist(one.name)
    if len(found) > 1 and one.kind != "names":
        raise ConfigError(f"the parameter {one.name} is given {len(found)} times; give it once")
    return ",".join(found)


def _body(request: Request) -> Mapping[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ConfigError(f"the body is of type {kind!r:.50}; send application/json")
    try:
        found = json.loads(request.state.content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError("the body must be a JSON object")
    return found
