"""The log of a worker: a line when a job starts, a line when it ends, and the two formats, text and JSON.

A library doesn't configure logging. `jobq worker` does, unless the application did. Arguments are never logged, and
control characters in messages and errors are escaped.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from pythonjsonlogger.json import JsonFormatter as JsonLines

from jobq.errors import masked_text
from jobq.jobs.context import Context, running
from jobq.observe.escape import escaped

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
#: What records inside a job carry.
FIELDS = ("job", "mid", "attempt", "queue")
logger = logging.getLogger("jobq.job")


class JobLog:
    """Middleware: logs `→` at debug when a job starts, `←` at info when it is done. The executor logs failures."""

    def run(self, context: Context, next: Callable[[], Any]) -> Any:
        """Around a sync job."""
        began = _started(context)
        value = next()
        _done(context, began)
        return value

    async def arun(self, context: Context, next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async job."""
        began = _started(context)
        value = await next()
        _done(context, began)
        return value


def _started(context: Context) -> float:
    if logger.isEnabledFor(logging.DEBUG):
        waited = (
            f" waited {spent(max(0.0, time.time() - context.enqueued_at / 1000))}"
            if context.enqueued_at
            else ""
        )
        again = f" attempt {context.attempt}" if context.attempt > 1 else ""
        logger.debug("→ %s %s%s%s", context.job, context.mid, again, waited, extra=_extra(context))
    return time.perf_counter()


def _done(context: Context, began: float) -> None:
    if logger.isEnabledFor(logging.INFO):
        took = time.perf_counter() - began
        extra = {**_extra(context), "outcome": "done", "run_ms": round(took * 1000, 3)}
        logger.info("← %s %s %s", context.job, context.mid, spent(took), extra=extra)


def _extra(context: Context) -> dict[str, Any]:
    return {name: getattr(context, name) for name in FIELDS}


def spent(seconds: float) -> str:
    """`0.42 ms`, `12.0 s`."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds * 1000:.1f} ms"


class JobFields(logging.Filter):
    """Adds `job`, `mid`, `queue` and `attempt` to each record made inside a job, unless the record has them.

    `jobq worker` adds it to its own handler and to those that the application put on the root logger.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        context = running.get(None)
        if context is not None:
            for name, value in _extra(context).items():
                record.__dict__.setdefault(name, value)
        return True


class TextFormatter(logging.Formatter):
    """`08:15:02.123 4711 INFO message`. Further lines are indented, so that no text can look like another entry.

    Lines of the application inside a job end with `job=… mid=… attempt=… queue=…`.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).strftime("%H:%M:%S.%f")[:-3]
        lines = _message(record).split("\n") + _traceback(self, record)
        if "mid" in record.__dict__ and not _is_ours(record):
            fields = (f"{name}={record.__dict__.get(name)}" for name in FIELDS)
            lines[0] += f"  {' '.join(fields)}"
        return f"{moment} {record.process} {record.levelname:7} " + "\n    ".join(
            map(escaped, lines)
        )


class JsonFormatter(JsonLines):
    """One JSON object a line: at, level, logger, pid, message, the record's extra fields, traceback."""

    def __init__(self) -> None:
        super().__init__(
            ("levelname", "name", "process", "message"),
            json_default=str,
            rename_fields={
                "levelname": "level", "name": "logger", "process": "pid", "exc_info": "traceback",
            },
        )  # fmt: skip

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        """Fill in the fields of one line."""
        at = datetime.fromtimestamp(record.created, UTC)
        log_data["at"] = at.isoformat(timespec="milliseconds")
        super().add_fields(log_data, record, message_dict)
        log_data["level"] = record.levelname.lower()
        for name in ("message", "traceback"):
            if name in log_data:
                log_data[name] = _shown(record, log_data[name])


def _message(record: logging.LogRecord) -> str:
    return _shown(record, record.getMessage())


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    error = formatter.formatException(record.exc_info) if record.exc_info else ""
    lines = _shown(record, error).split("\n") if error else []
    return lines + (
        formatter.formatStack(record.stack_info).split("\n") if record.stack_info else []
    )


def _shown(record: logging.LogRecord, text: str) -> str:
    """`text`, with passwords of URLs masked in what jobq logs. The application's records don't change."""
    return masked_text(text) if _is_ours(record) else text


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "jobq"


class Logging:
    """The handler of `jobq worker`: on the logger `jobq` while the application loads, then on the root logger."""

    def __init__(self, level: str, form: str = "text") -> None:
        self.handler = logging.StreamHandler(sys.stderr)
        self.handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
        self.fields = JobFields()
        self.handler.addFilter(self.fields)
        self.own = logging.getLogger("jobq")
        self.own.setLevel(level.upper())
        self.own.addHandler(self.handler)
        # A handler that the application adds to the root would print every line twice.
        self.own.propagate = False

    def settle(self) -> None:
        """After the application's modules have loaded: leave the log to their handlers, or else handle all loggers."""
        root = logging.getLogger()
        self.own.removeHandler(self.handler)
        self.own.propagate = True
        if not root.handlers and not self.own.handlers:
            root.addHandler(self.handler)
            root.setLevel(self.own.level)
        for handler in root.handlers:
            handler.addFilter(self.fields)
