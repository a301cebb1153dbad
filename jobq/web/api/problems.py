"""Errors of the API, as RFC 9457 writes them, with a code that programs can rely on."""

from __future__ import annotations

from enum import Enum

from starlette.responses import JSONResponse

from jobq.web.api.shapes import TEXT, WHOLE, RecordShape, Text


class Code(Enum):
    """What is wrong. The word never changes; the text does."""

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
PROBLEM = RecordShape(
    "What went wrong.", title=TEXT, status=WHOLE, detail=TEXT,
    code=Text("A word that programs can rely on.", values=tuple(one.value for one in Code)),
)  # fmt: skip


def problem(status: int, detail: str, title: str = "") -> JSONResponse:
    """Return an error as a reply."""
    code = _STATUS.get(status, Code.BAD_REQUEST if status < 500 else Code.FAILED)
    facts = {
        "title": title or code.value.replace("_", " ").capitalize(), "status": status, "detail": detail,
        "code": code.value,
    }  # fmt: skip
    headers = {"www-authenticate": 'Bearer realm="jobq"'} if status == 401 else {}
    return JSONResponse(
        PROBLEM.written(facts), status, headers, media_type="application/problem+json"
    )
