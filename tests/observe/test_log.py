"""The log lines of `jobq worker`."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.jobs.codec import encode
from jobq.jobs.context import LINES_SIZE, Context
from jobq.observe import log

ROOT = Path(__file__).resolve().parents[2]
TRACE = "0123456789abcdef0123456789abcdef"
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


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[logging.Logger, logging.Logger]]:
    """The root logger and jobq's, restored afterwards."""
    root, own = logging.getLogger(), logging.getLogger("jobq")
    state = [(one, one.handlers[:], one.level, one.propagate) for one in (root, own)]
    known = {one for one in logging.root.manager.loggerDict.values() if type(one) is logging.Logger}
    filtering = [*known, *(handler for one in known for handler in one.handlers)]
    filters = [(one, one.filters[:]) for one in filtering]
    yield root, own
    monkeypatch.undo()  # it would put back the handlers of the test afterwards
    for one in known:
        one.__class__, one.disabled = logging.Logger, False
    for one, before in filters:
        one.filters[:] = before
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


def test_logging_set_up_by_the_application_or_by_a_job_leaves_jobq_its_log(loggers: Any) -> None:
    loggers[0].handlers[:] = []
    set_up = log.Logging("info")
    set_up.handler.setStream(stream := io.StringIO())
    logging.config.dictConfig({"version": 1})
    logging.getLogger("jobq.worker").error("importing")
    set_up.settle()
    logging.getLogger("jobq.job").error("running")
    logging.config.dictConfig({"version": 1})
    logging.getLogger("jobq.job").error("after the job")
    lines = [line.partition("ERROR   ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["importing", "running", "after the job"]


def call(
    name: str = "a.b", mid: str = "m", attempt: int = 1, queue: str = "low", headers: Any = None
) -> Any:
    """What the log reads of a call."""
    message = SimpleNamespace(mid=mid, attempt=attempt)
    job = SimpleNamespace(name=name)
    return SimpleNamespace(
        job=job, message=message, queue=queue, enqueued_at=1_000, headers=headers
    )


@pytest.fixture
def job_log(
    loggers: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Any, io.StringIO]]:
    """job_log("json"): the log of a worker, set up as without handlers of the application, and what it wrote."""
    loggers[0].handlers[:] = []  # pytest's own

    def make(form: str = "text", level: str = "debug") -> tuple[Any, io.StringIO]:
        loggers[0].handlers[:] = []
        set_up = log.Logging(level, form)
        set_up.handler.setStream(stream := io.StringIO())
        set_up.settle()
        return set_up, stream

    return make


def at(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "time_ns", lambda: round(now * 1e9))


CALLS = [
    call(), call(attempt=3), call("größe.→", "m 1", queue='"q"'), call("a\n08:00 forged\x1b[2J", "m"),
    call("b", "redis://u:secret@host/1"), call("x" * 5000),
]  # fmt: skip


@pytest.mark.parametrize("form", log.FORMATS)
@pytest.mark.parametrize("now", [1_700_000_000.0, 1_700_000_000.9999999, 1_700_000_001.0625])
@pytest.mark.parametrize("inside", [False, True])
def test_lines_are_the_same_bytes_with_and_without_logging(
    job_log: Any, monkeypatch: pytest.MonkeyPatch, form: str, now: float, inside: bool
) -> None:
    at(monkeypatch, now)
    if inside:
        context = Context(call(headers={"traceparent": f"00-{TRACE}-{'7' * 16}-01"}), worker="w 1")
        current: ContextVar[Context] = ContextVar("current")
        current.set(context)
        monkeypatch.setattr(log, "running", current)
    told = []
    for through_logging in (False, True):
        set_up, stream = job_log(form)
        if through_logging:
            monkeypatch.setattr(log.logger, "filters", [lambda _: True])
        for one in CALLS:
            set_up.jobs.started(one)
            set_up.jobs.done(one, 0.0123456)
        set_up.jobs.flush()
        told.append(stream.getvalue())
    assert told[0] == told[1]
    assert told[0].count("\n") == 2 * len(CALLS) + 2 * (form == "text")
    assert "redis://***@host" in told[0] and "attempt" in told[0] and "12.3 ms" in told[0]
    assert (f'"worker": "w 1", "trace_id": "{TRACE}"' in told[0]) == (inside and form == "json")


def test_time_of_a_line_is_that_of_its_record_when_many_share_a_millisecond() -> None:
    lines, formatter = log.TextLines(os.getpid()), log.TextFormatter()
    call: Any = None
    for step in range(5_000):
        # Tenths of a microsecond around the ends of milliseconds, now and then a step back.
        now = 1_700_000_000.4990 + step * 0.7e-6 - (step % 100 == 99) * 0.01
        record = logging.LogRecord("jobq.job", 20, "", 0, "done", None, None)
        record.created = now
        assert lines.line(now, logging.INFO, "done", call, None) == f"{formatter.format(record)}\n"


def test_ends_are_written_together_and_no_other_line_overtakes_them(job_log: Any) -> None:
    set_up, stream = job_log(level="info")
    for number in range(3):
        set_up.jobs.started(call(mid=f"m{number}"))
        set_up.jobs.done(call(mid=f"m{number}"), 0.001)
    assert stream.getvalue() == ""
    logging.getLogger("app").warning("theirs")
    set_up.jobs.done(call(mid="m3"), 0.001)
    set_up.jobs.flush()
    ends = [re.split(" {2,}", line)[-1] for line in stream.getvalue().splitlines()]
    assert [end.split()[-3 if "←" in end else -1] for end in ends] == [
        "m0",
        "m1",
        "m2",
        "theirs",
        "m3",
    ]
    told = stream.getvalue()
    set_up.jobs.flush()
    assert stream.getvalue() == told


def test_starts_are_written_at_once_and_ends_in_good_time(
    job_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up, stream = job_log()
    at(monkeypatch, 1_000.0)
    set_up.jobs.started(call(mid="first"))
    assert "→ a.b first" in stream.getvalue()
    set_up.jobs.done(call(mid="early"), 0.001)
    at(monkeypatch, 1_000.2)
    set_up.jobs.done(call(mid="late"), 0.001)
    assert "early" in stream.getvalue() and "late" not in stream.getvalue()
    for _ in range(100):  # more than the memory takes
        set_up.jobs.done(call(mid="more"), 0.001)
    assert "late" in stream.getvalue()


def test_what_a_dead_child_kept_is_written_by_its_supervisor_once(job_log: Any) -> None:
    set_up, stream = job_log()
    memory = memoryview(bytearray(LINES_SIZE))
    set_up.jobs.keep_in(memory)
    set_up.jobs.done(call(mid="dead"), 0.001)
    set_up.jobs.write_rest(memory)
    set_up.jobs.write_rest(memory)
    assert stream.getvalue().count("dead") == 1


def test_signal_handler_that_interrupts_a_write_does_not_begin_another(job_log: Any) -> None:
    set_up, stream = job_log(level="info")

    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            set_up.jobs.flush()  # as by a timer, in the middle of a write
            return super().write(text)

    set_up.handler.setStream(stream := Interrupted())
    set_up.jobs.done(call(), 0.001)
    set_up.jobs.flush()
    assert stream.getvalue().count("←") == 1


def test_a_thread_that_logs_never_waits_for_one_that_writes_what_is_kept(job_log: Any) -> None:
    set_up, stream = job_log(level="info")

    def work(number: int) -> None:
        for _ in range(300):
            logging.getLogger("app").info("own %d", number)
            set_up.jobs.done(call(mid=f"m{number}"), 0.001)
            set_up.jobs.flush()

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(switch)
    assert not any(thread.is_alive() for thread in threads)
    lines = stream.getvalue().splitlines()
    assert [sum(end in one for one in lines) for end in ("own", "←")] == [1200, 1200]


def silenced(_: logging.LogRecord) -> bool:
    return False


class Marked(logging.LogRecord):
    """What the record factory of an application makes."""

    def getMessage(self) -> str:
        return f"marked: {super().getMessage()}"


def add_handler(logger: str) -> Callable[[Any, pytest.MonkeyPatch, io.StringIO], None]:
    def add(_: Any, patch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
        one = logging.getLogger(logger)
        patch.setattr(one, "handlers", [*one.handlers, logging.StreamHandler(stream)])

    return add


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (add_handler("jobq.job"), 2),
        (add_handler("jobq"), 2),
        (add_handler(""), 2),
        (lambda set_up, *_: set_up.handler.setFormatter(logging.Formatter("mine %(mid)s")), 1),
        (lambda set_up, *_: set_up.handler.addFilter(silenced), 0),
        (lambda set_up, *_: set_up.handler.setLevel("ERROR"), 0),
        (lambda _, patch, __: patch.setattr(log.logger, "filters", [silenced]), 0),
        (lambda _, patch, __: patch.setattr(log.logger, "propagate", False), 0),
        (lambda _, patch, __: patch.setattr(logging.Logger, "callHandlers", lambda *_: None), 0),
        (lambda _, patch, __: patch.setattr(logging, "_logRecordFactory", Marked), 1),
    ],
)  # fmt: skip
def test_lines_pass_through_logging_once_the_application_changes_it(
    job_log: Any, monkeypatch: pytest.MonkeyPatch, change: Any, lines: int
) -> None:
    set_up, stream = job_log()
    log.logger.isEnabledFor(logging.INFO)  # its answer is kept
    change(set_up, monkeypatch, stream)
    set_up.jobs.done(call(), 0.001)
    told = stream.getvalue().splitlines()
    set_up.jobs.flush()
    assert stream.getvalue().splitlines() == told and len(told) == lines
    assert all("mine m" in line or "← a.b m 1.0 ms" in line for line in told)


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

@job(name="fail", queue="low", retries=0)
def fail():
    logging.getLogger("app.pages").info("before")
    raise ValueError("broken")
"""


def logged(
    server: Any, queue: Any, tmp_path: Any, configured: str, *options: str, job: str = "fetch"
) -> list[str]:
    """What a worker wrote whose one job logs through plain loggers."""
    (tmp_path / "logging_job.py").write_text(LOGGING_JOB.format(configured=configured))
    headers = {"traceparent": f"00-{TRACE}-{'7' * 16}-01"}
    queue.enqueue(encode(job, [], {}, round(time.time() * 1000), headers), mid="m-1")
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
    assert own.endswith("WARNING slow  job=fetch mid=m-1 attempt=1 queue=low")
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
    assert [one["job"] for one in inside] == ["fetch"] * 3
    assert [one.get("extra_job") for one in inside] == [None, "its own", None]
    assert all("mid" not in one for one in records if one["logger"] == "jobq.worker")
    assert {(one["trace_id"], bool(one["worker"])) for one in records if "mid" in one} == {
        (TRACE, True)
    }


def test_line_of_a_failure_says_how_the_attempt_ended(
    server: Any, queue: Any, tmp_path: Any
) -> None:
    # A handler on a logger of the application gets the fields as well.
    configured = (
        "from jobq.observe.log import JsonFormatter\n"
        "handler = logging.StreamHandler(); handler.setFormatter(JsonFormatter())\n"
        "own = logging.getLogger('app.pages'); own.addHandler(handler); own.propagate = False"
    )
    lines = logged(server, queue, tmp_path, configured, "--log-format", "json", job="fail")
    (before, dead) = [one for one in map(json.loads, lines) if one.get("mid") == "m-1"]
    shared = ("job", "mid", "queue", "attempt", "worker", "trace_id")
    assert [before[name] for name in shared] == [dead[name] for name in shared]
    assert (dead["level"], dead["outcome"], dead["error"]) == ("error", "dead", "ValueError")
    assert dead["run_ms"] >= 0 and dead["wait_ms"] >= 0 and len(dead["fingerprint"]) > 8


def test_handlers_of_the_application_get_the_fields_too(
    server: Any, queue: Any, tmp_path: Any
) -> None:
    configured = (
        "logging.basicConfig(level='INFO', stream=sys.stderr, format='%(message)s / %(mid)s')"
    )
    lines = logged(server, queue, tmp_path, configured)
    assert "all of it / m-1" in lines
    assert "slow / m-1" in lines


OWN = {"at": "x", "level": "y", "logger": "z", "pid": 5, "traceback": "t"}


def test_extra_fields_never_replace_those_of_a_json_line() -> None:
    line = json.loads(log.JsonFormatter().format(record("hello", **OWN)))
    assert (line["level"], line["logger"], line["message"]) == ("info", "app", "hello")
    assert line["pid"] == os.getpid()
    assert line["at"].startswith("20")
    assert "traceback" not in line
    assert {name: line[f"extra_{name}"] for name in OWN} == OWN
    line = json.loads(log.JsonFormatter().format(record("failed", raised("bad"), **OWN)))
    assert "ValueError: bad" in line["traceback"]
    assert line["extra_traceback"] == "t"


def test_fields_of_the_job_are_not_replaced_by_extra_fields_inside_it() -> None:
    context = SimpleNamespace(
        job="app.pay",
        mid="m",
        attempt=1,
        queue="low",
        partition="",
        worker="",
        trace_id="",
        span_id="",
    )
    made = record("hello", job="mine", queue="low", mid="other")
    entered = log.running.set(context)  # type: ignore[arg-type]
    try:
        log.JobFields().filter(made)
        log.JobFields().filter(made)  # of a second handler
    finally:
        log.running.reset(entered)
    fields = made.__dict__
    assert (fields["job"], fields["mid"], fields["queue"]) == ("app.pay", "m", "low")
    assert "extra_queue" not in fields
    assert (fields["extra_job"], fields["extra_mid"]) == ("mine", "other")


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        ({"a": [float("-inf"), 1.5, None, True]}, {"a": ["-inf", 1.5, None, True]}),
        ({(1, 2): "odd key"}, {"(1, 2)": "odd key"}),
    ],
    ids=["nan", "nested", "key"],
)
def test_json_line_is_json_whatever_its_values_are(value: Any, shown: Any) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"bare {word}")

    line = log.JsonFormatter().format(record("hello", value=value))
    assert json.loads(line, parse_constant=refuse)["value"] == shown


def test_json_line_of_a_circle_is_cut() -> None:
    assert (
        "…" in json.loads(log.JsonFormatter().format(record("hello", value=_circle()))).__repr__()
    )


@pytest.mark.parametrize("form", log.FORMATS)
def test_record_that_cannot_be_formatted_and_warnings_are_lines(form: str) -> None:
    script = """if True:
        import logging, sys, warnings
        from jobq.observe.log import Logging
        logs = Logging("info", sys.argv[1])
        warnings.warn("early", stacklevel=1)
        logs.settle()
        warnings.warn("late", stacklevel=1)
        class Broken:
            def __repr__(self):
                raise RuntimeError("no repr")
        logging.getLogger("app").error("%d apples", "many")
        logging.getLogger("app").error(Broken())
        logging.getLogger("app").error("whole")
    """
    ran = subprocess.run(
        [sys.executable, "-c", script, form], capture_output=True, text=True, check=True, cwd=ROOT
    )
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("    ")]
    if form == "json":
        lines = [f"{line['level'].upper()} {line['message']}" for line in map(json.loads, lines)]
    expected = ["UserWarning: early", "UserWarning: late", "TypeError", "RuntimeError", "whole"]
    assert len(lines) == len(expected)
    assert all(word in line for word, line in zip(expected, lines, strict=True))
    assert "apples" in lines[2]
