"""The log lines of `jobq worker`."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.observe import log

ROOT = Path(__file__).resolve().parents[2]
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


LOGGING_JOB = """
import logging, sys
from jobq import current, job
{configured}

def helper():
    logging.getLogger("app.pages").info("fetched\\nall of it")

@job(name="fetch", queue="low")
def fetch():
    helper()
    logging.getLogger("app.pages").warning("slow", extra={{"job": "its own"}})
    current().logger.info("by the job's logger")
"""


def logged(server: Any, queue: Any, tmp_path: Any, configured: str, *options: str) -> list[str]:
    """What a worker wrote whose one job logs through plain loggers."""
    (tmp_path / "logging_job.py").write_text(LOGGING_JOB.format(configured=configured))
    queue.enqueue(b'{"job":"fetch"}', mid="m-1")
    ran = subprocess.run(
        [sys.executable, "-m", "jobq", "worker", "--burst", "--processes", "1", "--queues", "low",
         "--import", "logging_job", "--url", server.url, *options],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stderr.splitlines()


def test_plain_log_lines_name_their_job_when_they_are_text(
    server: Any, queue: Any, tmp_path: Any
) -> None:
    lines = logged(server, queue, tmp_path, "")
    (first,) = [line for line in lines if "fetched" in line]
    assert first.endswith("INFO    fetched  job=fetch mid=m-1 attempt=1 queue=low")
    (own,) = [line for line in lines if "slow" in line]
    assert own.endswith("WARNING slow  job=its own mid=m-1 attempt=1 queue=low")
    assert sum("mid=m-1" in line for line in lines) == 3
    assert any("by the job's logger  job=fetch" in line for line in lines)


def test_plain_log_lines_have_their_jobs_fields_when_they_are_json(
    server: Any, queue: Any, tmp_path: Any
) -> None:
    records = [
        json.loads(line) for line in logged(server, queue, tmp_path, "", "--log-format", "json")
    ]
    inside = [one for one in records if one["logger"] in ("app.pages", "fetch")]
    assert [(one["mid"], one["queue"], one["attempt"]) for one in inside] == [("m-1", "low", 1)] * 3
    assert [one["job"] for one in inside] == ["fetch", "its own", "fetch"]
    assert all("mid" not in one for one in records if one["logger"] == "jobq.worker")


def test_handlers_of_the_application_get_the_fields_too(
    server: Any, queue: Any, tmp_path: Any
) -> None:
    configured = (
        "logging.basicConfig(level='INFO', stream=sys.stderr, format='%(message)s / %(mid)s')"
    )
    lines = logged(server, queue, tmp_path, configured)
    assert "all of it / m-1" in lines
    assert "slow / m-1" in lines
