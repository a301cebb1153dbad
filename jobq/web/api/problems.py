"""Errors of the API in the format of RFC 9457, with a code that programs can rely on."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from starlette.responses import JSONResponse

from jobq.records import JsonRecord, words
from jobq.web.api.schema import writer_of


class Code(Enum):
    """The code of an API error. The codes never change, but the texts of errors may change."""

    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    WRONG_HOST = "wrong_host"
    TOO_FAST = "too_fast"
    FAILED = "failed"
    SERVER_AWAY = "server_away"


_STATUS = {
    400: Code.BAD_REQUEST, 401: Code.UNAUTHORIZED, 403: Code.FORBIDDEN, 404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED, 409: Code.CONFLICT, 413: Code.TOO_LARGE, 414: Code.TOO_LARGE,
    421: Code.WRONG_HOST, 429: Code.TOO_FAST, 503: Code.SERVER_AWAY,
}  # fmt: skip


class Problem(JsonRecord):
    """An error reply.

    Attributes:
        code: A word that programs can rely on.
    """

    title: str
    status: int
    detail: str
    code: Annotated[str, words(tuple(member.value for member in Code))]


def problem(status: int, detail: str, title: str = "") -> JSONResponse:
    """Return an error as a reply."""
    code = _STATUS.get(status, Code.BAD_REQUEST if status < 500 else Code.FAILED)
    body = Problem(title or code.value.replace("_", " ").capitalize(), status, detail, code.value)
    headers = {"www-authenticate": 'Bearer realm="jobq"'} if status == 401 else {}
    return JSONResponse(
        writer_of(Problem)(body), status, headers, media_type="application/problem+json"
    )
