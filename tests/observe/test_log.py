"""The log lines of `jobq worker`."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.observe import log

NASTY = "a\r\n08:00:00.000 1 INFO forged\x1b[2J\x9b"


def record(
    message: str = NASTY, error: BaseException | None = None, **extra: Any
) -> logging.LogRecord:
    """A log record as a handler gets it."""
    info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("app", logging.INFO, __file__, 1, message, (), info)  # type: ignore[arg-type]
    made.__dict__.update(extra)
    return made


def raised(message: str) -> Exception:
    """An error with a traceback."""
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_text_line_cannot_be_forged_by_what_it_quotes() -> None:
    first, *further = log.TextFormatter().format(record()).split("\n")
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} \d+ INFO    a\\r", first)
    assert further == [r"    08:00:00.000 1 INFO forged\x1b[2J\x9b"]


def test_traceback_is_indented_and_harmless() -> None:
    lines = log.TextFormatter().format(record("failed", raised(NASTY))).split("\n")
    assert all(line.startswith("    ") for line in lines[1:])
    assert all(line.isprintable() for line in lines)
    assert any("ValueError" in line for line in lines)


def test_json_line_is_one_object_with_the_fields_of_the_job() -> None:
    text = log.JsonFormatter().format(
        record(NASTY, raised("x"), job="a.b", mid="m\x1b", run_ms=1.5)
    )
    assert "\n" not in text and text.isascii()
    fields = json.loads(text)
    assert fields["message"] == NASTY and fields["mid"] == "m\x1b" and fields["run_ms"] == 1.5
    assert (
        fields["level"] == "info"
        and fields["logger"] == "app"
        and "ValueError" in fields["traceback"]
    )
    assert set(fields) == {
        "at",
        "level",
        "logger",
        "pid",
        "message",
        "job",
        "mid",
        "run_ms",
        "traceback",
    }


def test_job_log_tells_start_at_debug_and_end_at_info(caplog: pytest.LogCaptureFixture) -> None:
    context: Any = SimpleNamespace(job="a.b", mid="m", attempt=2, queue="low", enqueued_at=1)
    with caplog.at_level(logging.DEBUG, "jobq.job"):
        assert log.JobLog().run(context, lambda: 7) == 7
    start, end = caplog.records
    assert start.levelname == "DEBUG" and start.getMessage().startswith("→ a.b m attempt 2 waited ")
    assert end.levelname == "INFO" and re.fullmatch(r"← a\.b m \d+\.\d ms", end.getMessage())
    assert end.__dict__["outcome"] == "done" and end.__dict__["queue"] == "low"


def test_job_log_says_nothing_below_its_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jobq.job"):
        log.JobLog().run(SimpleNamespace(enqueued_at=1), lambda: None)  # type: ignore[arg-type]
    assert caplog.records == []


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[logging.Logger, logging.Logger]]:
    """The root logger and jobq's, restored afterwards."""
    root, own = logging.getLogger(), logging.getLogger("jobq")
    state = [(one, one.handlers[:], one.level, one.propagate) for one in (root, own)]
    yield root, own
    for one, handlers, level, propagate in state:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


def test_logging_serves_all_loggers_when_the_application_configured_none(loggers: Any) -> None:
    loggers[0].handlers[:] = []  # pytest's own, which it adds for the length of the test
    set_up = log.Logging("info")
    set_up.handler.setStream(stream := io.StringIO())
    logging.getLogger("jobq.worker").info("before")
    set_up.settle()
    logging.getLogger("jobq.worker").info("after")
    logging.getLogger("app").info("theirs")
    assert [line.split()[-1] for line in stream.getvalue().splitlines()] == [
        "before",
        "after",
        "theirs",
    ]


def test_logging_gives_way_to_handlers_of_the_application(loggers: Any) -> None:
    root, own = loggers
    set_up = log.Logging("info")
    set_up.handler.setStream(stream := io.StringIO())
    root.addHandler(logging.StreamHandler(theirs := io.StringIO()))
    set_up.settle()
    logging.getLogger("jobq.worker").info("once")
    assert stream.getvalue() == "" and theirs.getvalue() == "once\n"
    assert own.handlers == [] and own.propagate
