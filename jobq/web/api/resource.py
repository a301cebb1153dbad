"""Declare a resource of the API: its path, role, parameters, reply type and handler."""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec
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
from jobq.web.api.schema import writer_of
from jobq.web.history import Span
from jobq.web.operations.service import NotAllowedError
from jobq.web.routes import ROUTES, identity_of
from jobq.web.site import Site, site_of

logger = logging.getLogger("jobq.web")
ROOT = "/api/v1"
MAX_ITEMS = 1_000
#: The longest time range that a request may have.
MAX_DAYS = 400
T = TypeVar("T")


class NotThereError(JobqError):
    """The requested resource doesn't exist."""


class ConflictError(JobqError):
    """A request contradicts an earlier request."""


class Parameter(NamedTuple):
    """A parameter of a request.

    Attributes:
        needed: Whether a request without the parameter is rejected.
        least, most: Bounds of a number.
        values: Allowed values.
    """

    name: str
    says: str
    kind: Literal["text", "number", "duration", "names"] = "text"
    place: Literal["query", "path"] = "query"
    default: str = ""
    needed: bool = False
    least: int = 1
    most: int = MAX_ITEMS
    values: tuple[str, ...] = ()

    def value_of(self, given: str) -> Any:
        """Parse a value. Raises ConfigError if the value isn't allowed."""
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
            if text and not 0 < seconds <= MAX_DAYS * 86_400:
                raise ConfigError(
                    f"{self.name}={text!r:.100} is out of range; it must be longer than 0s and at most {MAX_DAYS}d"
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
    """One request, its parameters by name, and the identity of its sender."""

    request: Request = field(repr=False)
    site: Site = field(repr=False)
    identity: Identity
    given: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @property
    def now_ms(self) -> int:
        """The server's time, epoch ms."""
        return self.site.client.clock_ms()

    @cached_property
    def span(self) -> Span:
        """The requested time range."""
        return span_of(self.now_ms, self["range"], self["since"], self["until"])


#: A function that answers a call. The type of its parameter `body`, if it has one, is the type of the body.
Answerer = Callable[..., Any]


@dataclass(frozen=True)
class Resource:
    """One resource and method."""

    name: str
    path: str
    method: str
    role: UserRole
    summary: str
    parameters: tuple[Parameter, ...]
    answer: Answerer = field(repr=False)
    status: int = 200

    @cached_property
    def types(self) -> dict[str, Any]:
        """The handler's type hints: `return` for the reply, and the body's type, if there is a body."""
        return get_type_hints(self.answer, include_extras=True)

    def handle(self, request: Request) -> Response:
        """Answer a request."""
        try:
            given = {
                parameter.name: parameter.value_of(_given(request, parameter))
                for parameter in self.parameters
            }
            body = {"body": _body(request, self.types["body"])} if "body" in self.types else {}
            call = ApiCall(request, site_of(request), identity_of(request), given)
            written = writer_of(self.types["return"])(self.answer(call, **body))
            return JSONResponse(written, self.status)
        except JobqError as error:
            return refusal(error)


class Resources:
    """All resources, in the order in which they are declared."""

    def __init__(self) -> None:
        self.declared: list[Resource] = []


RESOURCES = Resources()


def resource(
    path: str, *parameters: Parameter, method: str = "GET", role: UserRole = UserRole.READ, status: int = 200
) -> Callable[[Answerer], Answerer]:  # fmt: skip
    """Declare the handler of ROOT + `path`. The resource's name and summary are the handler's name and docstring."""

    def declare(answer: Answerer) -> Answerer:
        summary = (answer.__doc__ or "").strip().splitlines()[0].rstrip(".")
        named = {parameter.name for parameter in parameters}
        in_path = tuple(
            Parameter(name, f"Name of the {name}.", place="path")
            for name in path_names(path)
            if name not in named
        )
        made = Resource(
            answer.__name__, path, method, role, summary, (*in_path, *parameters), answer, status
        )  # fmt: skip
        RESOURCES.declared.append(made)
        ROUTES.add(ROOT + path, method, role, f"api_{made.name}", made.handle, program=True)
        return answer

    return declare


def path_names(path: str) -> list[str]:
    """Return the names of the variable parts of a path."""
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


RANGE = (
    Parameter("range", "Length of the range, such as 15m, 6h or 7d.", "duration", default="1h"),
    Parameter("since", "Start, such as 2026-11-23T14:00Z or 2h (ago). Replaces range."),
    Parameter("until", "End, in the format of since.  Default: now."),
)
PAGING = (
    Parameter("limit", "Maximum number of rows in this reply.", "number", default="100"),
    Parameter("cursor", "Value of `next` in the previous reply."),
)


def span_of(now_ms: int, range_s: float, since: str, until: str) -> Span:
    """Return a time range. Raises ConfigError for a range that ends before it begins, or is longer than MAX_DAYS."""
    end = _moment(until, now_ms) if until else now_ms + 1
    begin = _moment(since, now_ms) if since else end - round(1000 * range_s)
    if not begin < end:
        raise ConfigError(
            f"since={since!r:.50} must be earlier than until={until!r:.50}; swap them"
        )
    if end - begin > MAX_DAYS * DAY_MS:
        raise ConfigError(f"the range is longer than {MAX_DAYS} days; choose a shorter range")
    return Span(begin, end)


def _moment(text: str, now_ms: int) -> int:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return round(parse_time(text, now=now, zone=UTC).timestamp() * 1000)


def cursor_text(value: Any) -> str:
    """Return the cursor that a client sends for the next page."""
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def read_cursor(text: str, kind: type[T]) -> T | None:
    """Decode a cursor; None for ''. Raises ConfigError if the text doesn't contain a value of type `kind`."""
    if not text:
        return None
    try:
        return msgspec.json.decode(
            urlsafe_b64decode(text[:4_000] + "=" * (-len(text) % 4)), type=kind
        )
    except (ValueError, RecursionError) as error:
        raise _no_cursor(text) from error


def offset_of(call: ApiCall) -> int:
    """Return the number of the first row of the page that the request's cursor selects."""
    at = read_cursor(call["cursor"], int) or 0
    if not 0 <= at < 10**9:
        raise _no_cursor(call["cursor"])
    return at


def page_of_rows(rows: list[Any], call: ApiCall) -> dict[str, Any]:
    """Return the requested page of a complete list of rows."""
    at = offset_of(call)
    end = at + call["limit"]
    return {"items": rows[at:end], "next": cursor_text(end) if end < len(rows) else None}


def _no_cursor(text: str) -> ConfigError:
    return ConfigError(f"cursor={text!r:.100} was not returned by this list; leave it out")


#: Class of an error -> status of the reply; the first matching class counts.
_STATUS: tuple[tuple[type[JobqError], int], ...] = (
    (NotThereError, 404), (ConflictError, 409), (NotAllowedError, 403), (TooManyScansError, 429), (ConfigError, 400),
    (UnavailableError, 503), (ServerFullError, 503), (JobqError, 500),
)  # fmt: skip


def refusal(error: JobqError) -> Response:
    """Return the reply for an error."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    status = 403 if is_denied(error) else status
    if status == 500 and not isinstance(error, ScriptError):
        logger.warning("the API can't answer: %s", error)
    return problem(status, str(error))


def _given(request: Request, parameter: Parameter) -> str:
    if parameter.place == "path":
        return str(request.path_params[parameter.name])
    values = request.query_params.getlist(parameter.name)
    if len(values) > 1 and parameter.kind != "names":
        raise ConfigError(
            f"the parameter {parameter.name} was passed {len(values)} times; pass it only once"
        )
    return ",".join(values)


def _body(request: Request, kind: Any) -> Any:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise ConfigError(f"the body is of type {media!r:.50}; send application/json")
    try:
        return msgspec.json.decode(request.state.content, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the body is invalid: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is not JSON: {error}") from error
