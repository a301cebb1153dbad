"""Jobs, errors and runs, from the events on the server or from a lake; and what an autoscaler asks."""

from __future__ import annotations

from typing import Any

from jobq.errors import ConfigError
from jobq.metrics.demand import DemandMeter
from jobq.web.api.resource import (
    PAGING,
    RANGE,
    ApiCall,
    NotThereError,
    Parameter,
    cursor_text,
    page_of_rows,
    read_cursor,
    resource,
)
from jobq.web.api.shapes import (
    FLAG,
    MOMENT,
    NAMES,
    REAL,
    TEXT,
    WHOLE,
    ByName,
    Items,
    Maybe,
    RecordShape,
    Shape,
    Text,
    Whole,
    listed,
)
from jobq.web.history import BOUNDS_MS, ENDS, JobFigures, RunRow, Span, Wanted, shown_error
from jobq.web.sources import SOURCES, sources_of

PERCENTILES = RecordShape("Milliseconds.", p50=Maybe(REAL), p95=Maybe(REAL), p99=Maybe(REAL))
JOB = RecordShape(
    job=TEXT, queues=NAMES, runs=WHOLE, done=WHOLE, retry=WHOLE, dead=WHOLE,
    crashed=Whole("Runs that crashed, or whose lease ended."), failed=WHOLE,
    run_ms=PERCENTILES, wait_ms=PERCENTILES, cpu_ms=Maybe(REAL), rss_kib=WHOLE, last_at=MOMENT,
)  # fmt: skip
ERROR = RecordShape(
    group=Text("The fingerprint; of errors without one the class of the error, or the kind of the event."),
    error=TEXT, failures=WHOLE, dead=WHOLE, jobs=NAMES, queues=NAMES, workers=NAMES, first_at=MOMENT,
    last_at=MOMENT, trend=Items(WHOLE, "Failures in 60 equal parts of the range."),
)  # fmt: skip
RUN = RecordShape(
    at=MOMENT, queue=TEXT, kind=Text(values=ENDS), mid=TEXT, job=TEXT, attempt=WHOLE, run_ms=REAL, wait_ms=WHOLE,
    worker=TEXT, error=TEXT, group=TEXT, trace_id=TEXT,
)  # fmt: skip
POINT = RecordShape(at=MOMENT, done=WHOLE, failed=WHOLE, p95_ms=Maybe(REAL))
#: What every reply about a range of time says of itself.
COVERAGE: dict[str, Shape] = {
    "source": Text("Where the figures come from.", values=("events", "lake")),
    "since": MOMENT, "until": MOMENT, "complete": FLAG,
}  # fmt: skip
SOURCE = Parameter(
    "source", "events: the newest on the server; lake: all; auto: the lake beyond an hour.", default="auto",
    values=SOURCES,
)  # fmt: skip
QUEUES = Parameter("queues", "Only these queues, separated by commas.", "names")


@resource("/jobs", listed(JOB).with_fields(**COVERAGE), QUEUES, *RANGE, SOURCE, *PAGING)
def jobs(call: ApiCall) -> Any:
    """List the jobs that ran, those with the most runs first."""
    rows = _chosen(call).jobs(call.span, call["queues"])
    return page_of_rows([job_facts(row) for row in rows], call) | _coverage(call, call["queues"])


@resource(
    "/jobs/{job}",
    RecordShape(
        figures=Maybe(JOB), points=Items(POINT, "60 equal parts of the range."),
        histogram=Items(RecordShape(up_to_ms=Maybe(WHOLE), runs=WHOLE), "Runs by how long they took."),
        slowest=Items(RUN), **COVERAGE,
    ),
    *RANGE, SOURCE,
)  # fmt: skip
def job(call: ApiCall) -> Any:
    """Show the runs of one job."""
    found = _chosen(call).job(call.span, call["job"])
    bounds = (*BOUNDS_MS, None)
    return {
        "figures": None if found.figures is None else job_facts(found.figures), "points": found.points,
        "histogram": [{"up_to_ms": most, "runs": n} for most, n in zip(bounds, found.histogram, strict=True)],
        "slowest": [run_facts(row, call) for row in found.slowest],
    } | _coverage(call)  # fmt: skip


@resource(
    "/errors", listed(ERROR).with_fields(**COVERAGE), QUEUES, Parameter("job", "Only of this job."), *RANGE, SOURCE,
    *PAGING,
)  # fmt: skip
def errors(call: ApiCall) -> Any:
    """List errors by where they come from, the most frequent first."""
    rows = _chosen(call).errors(call.span, call["queues"], call["job"])
    shown = [
        row._asdict() | {"error": shown_error(row.error, call.site.settings.hide_errors)}
        for row in rows
    ]
    return page_of_rows(shown, call) | _coverage(call, call["queues"])


@resource(
    "/errors/{group}", RecordShape(figures=ERROR, newest=Items(RUN), **COVERAGE), *RANGE, SOURCE
)
def error(call: ApiCall) -> Any:
    """Show one group of errors, and its newest runs."""
    found = _chosen(call).error(call.span, call["group"])
    if found.figures is None:
        raise NotThereError("no error of this group in the range; choose a longer one")
    figures = found.figures._replace(
        error=shown_error(found.figures.error, call.site.settings.hide_errors)
    )
    newest = [run_facts(row, call) for row in found.newest]
    return {"figures": figures, "newest": newest} | _coverage(call)


@resource(
    "/history", listed(RUN).with_fields(**COVERAGE), Parameter("queue", "Only of this queue."),
    Parameter("job", "Only of this job."), Parameter("kind", "Only of this kind.", values=("", *ENDS)),
    Parameter("mid", "Only of this message."), Parameter("group", "Only of this group of errors."),
    Parameter("worker", "Only of this worker."), *RANGE, SOURCE, *PAGING,
)  # fmt: skip
def history(call: ApiCall) -> Any:
    """List ended attempts, the newest first."""
    wanted = Wanted(**{name: call[name] for name in Wanted._fields})
    cursor = read_cursor(call["cursor"]) or ""
    if not isinstance(cursor, str):
        raise ConfigError("cursor= is not one that this list gave; leave it out")
    page = _chosen(call).runs(call.span, wanted, cursor, call["limit"])
    following = None if page.following is None else cursor_text(page.following)
    return {
        "items": [run_facts(row, call) for row in page.runs], "next": following,
    } | _coverage(call, [wanted.queue] if wanted.queue else ())  # fmt: skip


@resource(
    "/autoscale",
    RecordShape(
        wanted_slots=Whole("Jobs that should be able to run at the same time."), busy=WHOLE, ready=WHOLE,
        queues=Items(RecordShape(
            queue=TEXT, paused=FLAG, ready=WHOLE, busy=WHOLE, arrivals_per_s=Maybe(REAL), mean_run_ms=Maybe(REAL),
            wanted_slots=WHOLE,
        )),
        unread=ByName(TEXT, "Queues that can't be read, with the reason; they count as 0."),
    ),
    Parameter("queues", "The queues to serve, separated by commas.", "names", needed=True),
    Parameter("target_wait", "What waits now should start within this time.", "duration", default="30s"),
)  # fmt: skip
def autoscale(call: ApiCall) -> Any:
    """Say how many slots queues need: for KEDA's metrics-api scaler."""
    meter = call.site.part(DemandMeter, lambda site: DemandMeter(site.client))
    return meter.measure(call["queues"], call["target_wait"])


def _chosen(call: ApiCall) -> Any:
    return sources_of(call.site).choose(call.span, call["source"])


def _coverage(call: ApiCall, queues: Any = ()) -> dict[str, Any]:
    span: Span = call.span
    chosen = _chosen(call)
    since = chosen.since(span, queues)
    return {
        "source": chosen.source, "since": since, "until": span.until, "complete": since <= span.since,
    }  # fmt: skip


def job_facts(row: JobFigures) -> dict[str, Any]:
    """Return a job's figures by name."""
    return row._asdict() | {"failed": row.failed}


def run_facts(row: RunRow, call: ApiCall) -> dict[str, Any]:
    """Return a run by name, without the text of its error where that is hidden."""
    return row._asdict() | {"error": shown_error(row.error, call.site.settings.hide_errors)}
