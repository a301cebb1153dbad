"""The log of a worker, as text or JSON, with a line for each start and each end of a job.

Only `jobq worker` configures logging, unless the application has already done so. Arguments of jobs are never logged.
Control characters in messages and errors are escaped.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter as JsonFormat

from jobq.client.names import base_of, partition_in
from jobq.errors import masked_text, shortened
from jobq.jobs.context import LINES_SIZE, Call, Context, running
from jobq.observe.escape import escaped
from jobq.observe.unblocked import Unblocked, told, unblocked

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
#: Levels of nested values in a JSON line where they are cut.
DEEPEST = 20
#: Fields that records inside a job carry.
FIELDS = ("job", "mid", "attempt", "queue")
#: Maximum time that a line stays in the buffer while more lines arrive.
MAX_WAIT_S = 0.1
#: The buffer begins with the number of bytes of its lines, in this many bytes.
_HEAD = 8
_ROOM = LINES_SIZE - _HEAD
logger = logging.getLogger("jobq.job")
#: The logger of lines about records that can't be written.
_FAILED = "jobq.log"
_ROOT, _OWN = logging.getLogger(), logging.getLogger("jobq")
#: Where captured warnings go.
_WARNINGS = logging.getLogger("py.warnings")
_STANDARD = (sys.stdout, sys.stderr)
_CALL_HANDLERS, _MAKE_RECORD = logging.Logger.callHandlers, logging.Logger.makeRecord


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes log records to stderr, and calls `before()` before each record."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, stream: TextIO) -> None:
        super().__init__(unblocked(stream))
        if isinstance(self.stream, Unblocked):
            self.stream.note = self._dropped

    def _dropped(self, nlines: int) -> str:
        record = logging.LogRecord(_FAILED, logging.WARNING, "", 0, told(nlines), None, None)
        return f"{self.format(record)}\n"

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self.before()
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Write one line instead of a traceback if a record can't be formatted."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError) or record.name == _FAILED:
            return  # nothing can be written, or not even that line
        what = f"a record of {record.name} at {record.pathname}:{record.lineno} can't be logged"
        message = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        text = f"{what}: {type(error).__name__}: {error}; its message is {message[:500]!r}"
        self.handle(logging.LogRecord(_FAILED, logging.ERROR, "", 0, text, None, None))


class JobLog:
    """Logs `→` with level DEBUG when a job starts, and `←` with level INFO when it is done. The executor logs failures.

    Lines are buffered in memory that the supervisor and the child share. All buffered lines are written together: at
    `flush`, when the memory is full, and before the handler writes any other record. Lines bypass `logging` if only
    this handler would see them and nothing would change them.
    """

    def __init__(self, handler: LogHandler, filters: list[JobFields]) -> None:
        self._handler, self._formatter, self._filters = handler, handler.formatter, filters
        self._lines = JsonLines() if isinstance(handler.formatter, JsonFormatter) else TextLines()
        self._lock = threading.RLock()
        self._inside = False
        self._due_at = 0.0
        self.keep_in(memoryview(bytearray(LINES_SIZE)))
        handler.before = self.flush

    def keep_in(self, memory: memoryview) -> None:
        """Buffer lines in memory that the supervisor can also read. A child calls this before its first job."""
        self._memory = memory
        self._nbytes = memory[:_HEAD].cast("q")
        self._pid = os.getpid()
        self._lines = type(self._lines)(self._pid)

    def started(self, call: Call) -> None:
        """Log that a job starts. The line is written immediately, because the job may run for a long time."""
        if not logger.isEnabledFor(logging.DEBUG):
            return
        waited = (
            f" waited {spent(max(0.0, time.time() - call.enqueued_at / 1000))}"
            if call.enqueued_at
            else ""
        )
        attempt = call.message.attempt
        again = f" attempt {attempt}" if attempt > 1 else ""
        name, mid = call.job.name, call.message.mid
        if not self._kept(logging.DEBUG, f"→ {name} {mid}{again}{waited}", call, None):
            logger.debug("→ %s %s%s%s", name, mid, again, waited, extra=_extra_of(call))
        self.flush()

    def done(self, call: Call, seconds: float) -> None:
        """Log that a job is done. The line is written at the next flush."""
        if not logger.isEnabledFor(logging.INFO):
            return
        # The same text as `spent` returns; for short jobs, this saves a call.
        took = f"{seconds * 1000:.1f} ms" if seconds < 10 else spent(seconds)
        name, mid = call.job.name, call.message.mid
        if not self._kept(logging.INFO, f"← {name} {mid} {took}", call, seconds):
            run_ms = round(seconds * 1000, 3)
            extra = {**_extra_of(call), "outcome": "done", "run_ms": run_ms}
            if call.enqueued_at:
                extra["wait_ms"] = waited_ms(call, time.time(), run_ms)
            logger.info("← %s %s %s", name, mid, took, extra=extra)

    def flush(self) -> None:
        """Write the buffered lines. In a process forked by a job, do nothing, because the parent writes the lines."""
        if self._nbytes[0] and os.getpid() == self._pid:
            with self._lock:
                # A signal handler may call this in the middle of `_kept`, or of this method.
                if self._inside:
                    return
                self._inside = True
                try:
                    self._write(self._memory)
                finally:
                    self._inside = False

    def write_rest(self, memory: memoryview) -> None:
        """Write the lines that a dead child had buffered. The supervisor calls this method."""
        self._write(memory)

    def _kept(self, level: int, text: str, call: Call, seconds: float | None) -> bool:
        """Buffer a line in the handler's format. Return False if the line must be logged with `logging` instead."""
        if not (self._is_plain(level) and text.isprintable() and "://" not in text):
            return False
        now = time.time()
        line = self._lines.line(now, level, text, call, seconds).encode()
        size, nbytes = len(line), self._nbytes
        if size > _ROOM:
            return False
        with self._lock:
            self._inside = True
            try:
                kept = nbytes[0]
                if kept and (now >= self._due_at or kept + size > _ROOM):
                    self._write(self._memory)
                    kept = 0
                if not kept:
                    self._due_at = now + MAX_WAIT_S
                end = kept + size
                self._memory[_HEAD + kept : _HEAD + end] = line
                nbytes[0] = end
            finally:
                self._inside = False
        return True

    def _write(self, memory: memoryview) -> None:
        """Write the buffered lines, then clear the buffer. If the child dies in between, the supervisor writes the
        lines again.
        """
        nbytes = memory[:_HEAD].cast("q")
        text = str(memory[_HEAD : _HEAD + nbytes[0]], "utf-8", "replace")
        try:
            if text:
                # Not `self._handler.flush()`: it takes the handler's lock, whose holder may wait for ours.
                self._handler.stream.write(text)
                self._handler.stream.flush()
        except (OSError, ValueError):
            pass  # closed: as with any record, the job must not fail for it
        nbytes[0] = 0

    def _is_plain(self, level: int) -> bool:
        """Return whether a record about a job would reach only this handler, and nothing would change the record."""
        handler, handlers = self._handler, _ROOT.handlers
        return (
            len(handlers) == 1
            and handlers[0] is handler
            and handler.formatter is self._formatter
            and handler.filters == self._filters
            and handler.level <= level
            and not (logger.handlers or logger.filters or _OWN.handlers)
            and logger.propagate
            and _OWN.propagate
            and logging.Logger.callHandlers is _CALL_HANDLERS
            and logging.Logger.makeRecord is _MAKE_RECORD
            and logging.getLogRecordFactory() is logging.LogRecord
        )


class TextLines:
    """Formats lines about jobs exactly as TextFormatter does."""

    def __init__(self, pid: int = 0) -> None:
        self.pid = pid
        # The level of the last line, and the range of times in which lines of this level have the same beginning.
        self._level, self._since, self._until = -1, 0.0, 0.0
        self._begin = ""

    def line(self, now: float, level: int, text: str, call: Call, seconds: float | None) -> str:
        """Format a line about a job.

        Args:
            seconds: How long the job ran; None when the job starts.
        """
        return f"{self._beginning(now, level)}{text}\n"

    def _beginning(self, now: float, level: int) -> str:
        if level == self._level and self._since <= now < self._until:
            return self._begin
        second = int(now)
        # Round to microseconds, as datetime does.
        us = second * 1_000_000 + round((now - second) * 1e6)
        second, ms = divmod(us // 1000, 1000)
        self._begin = self._head(second, f"{ms:03d}", logging.getLevelName(level))
        # The last microsecond of the millisecond is left out, because some of its times are rounded up.
        self._level, self._since, self._until = level, now, now + (998 - us % 1000) / 1e6
        return self._begin

    def _head(self, second: int, ms: str, level: str) -> str:
        at = datetime.fromtimestamp(second).strftime("%H:%M:%S.")
        return f"{at}{ms} {self.pid} {level:7} "


class JsonLines(TextLines):
    """Formats lines about jobs exactly as JsonFormatter does."""

    def _head(self, second: int, ms: str, level: str) -> str:
        at = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        fields = {"level": level.lower(), "logger": logger.name, "pid": self.pid}
        return f'{{"at": "{at}{ms}+00:00", {json.dumps(fields)[1:-1]}, "message": '

    def line(self, now: float, level: int, text: str, call: Call, seconds: float | None) -> str:
        """Format a line about a job; see `TextLines.line`."""
        message, end = call.message, ""
        if seconds is not None:
            run_ms = round(seconds * 1000, 3)
            end = f', "outcome": "done", "run_ms": {run_ms}'
            if call.enqueued_at:
                end += f', "wait_ms": {waited_ms(call, now, run_ms)}'
        context = running.get(None)
        if context is not None:
            for name, value in _around(context):
                end += f', "{name}": {quoted(value)}'
        if partition := partition_in(call.queue):
            end += f', "partition": {quoted(partition)}'
        return (
            f"{self._beginning(now, level)}{quoted(text)}, "
            f'"job": {quoted(call.job.name)}, "mid": {quoted(message.mid)}, '
            f'"attempt": {message.attempt}, "queue": {quoted(base_of(call.queue))}{end}}}\n'
        )


def _extra_of(call: Call) -> dict[str, Any]:
    message, partition = call.message, partition_in(call.queue)
    return {
        "job": call.job.name, "mid": message.mid, "attempt": message.attempt, "queue": base_of(call.queue),
        **({"partition": partition} if partition else {}),
    }  # fmt: skip


def _around(context: Context) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the fields `worker`, `trace_id` and `span_id` that are known."""
    if context.worker:
        yield "worker", context.worker
    trace_id, span_id = trace_of(context)
    if trace_id:
        yield "trace_id", trace_id
    if span_id:
        yield "span_id", span_id


def trace_of(context: Context) -> tuple[str, str]:
    """Return the trace id and the span id in hex, from OpenTelemetry's current span or else from the attempt."""
    # Not imported here: only a program that has loaded it can have a span.
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if current is not None and (span := current().get_span_context()).is_valid:
        return f"{span.trace_id:032x}", f"{span.span_id:016x}"
    return context.trace_id, context.span_id


def waited_ms(call: Call, now: float, run_ms: float) -> int:
    """Return the time from a message's enqueue to its run. The run took `run_ms` and has just ended."""
    return max(0, round(now * 1000 - run_ms - call.enqueued_at))


def spent(seconds: float) -> str:
    """Format a duration, such as `0.42 ms` or `12.0 s`."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds * 1000:.1f} ms"


class JobFields(logging.Filter):
    """Adds the fields of the running job to each log record. The application's fields with the same names become
    `extra_…`.

    The fields are job, mid, attempt, queue, worker and, if they are known, partition, trace_id and span_id. `jobq
    worker` adds this filter to its own handler, and to the handlers that exist when the application's modules are
    loaded.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the job's fields to the record, and return True to log the record."""
        context = running.get(None)
        if context is not None:
            for name in FIELDS:
                _put(record, name, getattr(context, name))
            if context.partition:
                _put(record, "partition", context.partition)
            for name, value in _around(context):
                _put(record, name, value)
        return True


def _put(record: logging.LogRecord, name: str, value: Any) -> None:
    """Add a job's field to a record. An application's field of the same name becomes `extra_…`; jobq's fields stay."""
    fields = record.__dict__
    if name in fields and not _is_ours(record) and fields[name] != value:
        fields[f"extra_{name}"] = fields[name]
    elif name in fields:
        return
    fields[name] = value


class TextFormatter(logging.Formatter):
    """Formats records as `08:15:02.123 4711 INFO message`. Continuation lines are indented, so that no text can look
    like another entry.

    Records that the application logs during a job end with `job=… mid=… attempt=… queue=…`.
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


class JsonFormatter(JsonFormat):
    """Formats each record as a JSON object on one line, with at, level, logger, pid, message, the record's extra
    fields, and traceback.

    An extra field with the name of a standard field gets the prefix `extra_`.
    """

    def __init__(self) -> None:
        super().__init__(
            ("levelname", "name", "process", "message"),
            json_default=str,
            json_serializer=_dumped,
            rename_fields={
                "levelname": "level", "name": "logger", "process": "pid", "exc_info": "traceback",
            },
        )  # fmt: skip

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        """Add the fields of the record to `log_data`."""
        at = datetime.fromtimestamp(record.created, UTC)
        own: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds"), "level": record.levelname.lower(),
            "logger": record.name, "pid": record.process, "traceback": message_dict.get("exc_info"),
        }  # fmt: skip
        log_data["at"] = own["at"]
        super().add_fields(log_data, record, message_dict)
        given = {**message_dict, **record.__dict__}
        for name, value in own.items():
            log_data[name] = value
            if given.get(name) is not None:
                log_data[f"extra_{name}"] = given[name]
        if log_data["traceback"] is None:
            del log_data["traceback"]
        for name in ("message", "traceback"):
            if name in log_data:
                log_data[name] = _shown(record, log_data[name])


def _dumped(line: dict[str, Any], **options: Any) -> str:
    try:
        return json.dumps(line, allow_nan=False, **options)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(_plain(line, 0), **options)


def _plain(value: Any, depth: int) -> Any:
    """Convert a value to a type that JSON supports.

    NaN, infinities and keys become text, and too deeply nested values become `…`.
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict | list | tuple) and depth >= DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, depth + 1) for inner in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def _message(record: logging.LogRecord) -> str:
    return _shown(record, record.getMessage()).rstrip("\n")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    error = formatter.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
    lines = _shown(record, error).split("\n") if error else []
    return lines + (
        formatter.formatStack(record.stack_info).split("\n") if record.stack_info else []
    )


def _shown(record: logging.LogRecord, text: str) -> str:
    return masked_text(shortened(text)) if _is_ours(record) else text


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == "jobq"


class _EnabledLogger(logging.Logger):
    """A logger that can't be disabled. By default, `dictConfig` and `fileConfig` disable all loggers that they don't
    mention.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "disabled":
            super().__setattr__(name, value)


def _keep_enabled() -> None:
    for name, known in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "jobq" and type(known) is logging.Logger:
            known.disabled = False
            known.__class__ = _EnabledLogger


class Logging:
    """Sets up logging for `jobq worker`: on the logger `jobq` while the application loads, then on the root logger."""

    def __init__(self, level: str, form: str = "text") -> None:
        self.handler = LogHandler(sys.stderr)
        self.handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
        self.fields = JobFields()
        self.handler.addFilter(self.fields)
        self.jobs = JobLog(self.handler, [self.fields])
        self.own = logging.getLogger("jobq")
        _keep_enabled()
        self.own.setLevel(level.upper())
        self.own.addHandler(self.handler)
        # A handler that the application adds to the root would print every line twice.
        self.own.propagate = False
        # Until the modules have loaded the root logger has no handler.
        logging.captureWarnings(True)
        _WARNINGS.addHandler(self.handler)

    def settle(self) -> None:
        """Let the application's handlers, if any, write the log. Otherwise, handle the records of all loggers."""
        root = logging.getLogger()
        _keep_enabled()
        self.own.removeHandler(self.handler)
        _WARNINGS.removeHandler(self.handler)
        self.own.propagate = True
        if not root.handlers and not self.own.handlers:
            root.addHandler(self.handler)
            root.setLevel(self.own.level)
        others = list(root.manager.loggerDict.values())
        for log in (root, *others):
            for handler in log.handlers if isinstance(log, logging.Logger) else ():
                handler.addFilter(self.fields)
                if type(handler) is logging.StreamHandler and handler.stream in _STANDARD:
                    handler.setStream(unblocked(handler.stream))
