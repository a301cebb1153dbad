"""Jobs, errors and runs, from the events on the server or from a lake, and values for autoscalers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from jobq.metrics.demand import Demand, DemandMeter
from jobq.records import JsonRecord, Moment, words
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
from jobq.web.api.schema import ListPage
from jobq.web.history import (
    BOUNDS_MS,
    ENDS,
    ErrorFigures,
    Failure,
    JobFigures,
    Point,
    RunRow,
    Span,
    Wanted,
    with_shown_errors,
)
from jobq.web.sources import SOURCES, sources_of

T = TypeVar("T")
Origin = Annotated[str, words(("events", "lake")), Meta(description="Source of the figures.")]
IsComplete = Annotated[
    bool, Meta(description="False if the server no longer has all events of the range.")
]


class CoveredPage(ListPage[T], kw_only=True):
    """A list page with figures for a range of time."""

    source: Origin
    since: Moment
    until: Moment
    complete: IsComplete


class HistogramBar(JsonRecord):
    """Number of runs that took longer than the previous bar's limit and at most `up_to_ms`; null means no limit."""

    up_to_ms: int | None
    runs: int


class JobReply(JsonRecord):
    """The runs of one job.

    Attributes:
        points: Figures in each of 60 equal parts of the range.
        histogram: Number of runs by run time.
    """

    figures: JobFigures | None
    points: Sequence[Point]
    histogram: list[HistogramBar]
    slowest: list[RunRow]
    source: Origin
    since: Moment
    until: Moment
    complete: IsComplete


class ErrorReply(JsonRecord):
    """One group of errors, and its latest runs."""

    figures: ErrorFigures
    newest: list[RunRow]
    source: Origin
    since: Moment
    until: Moment
    complete: IsComplete


SOURCE = Parameter(
    "source", "events: the latest events on the server; lake: all; auto: lake for ranges over an hour.", default="auto",
    values=SOURCES,
)  # fmt: skip
QUEUES = Parameter("queues", "Only these queues, separated by commas.", "names")


@resource("/jobs", QUEUES, *RANGE, SOURCE, *PAGING)
def jobs(call: ApiCall) -> CoveredPage[JobFigures]:
    """List jobs with runs in the range, most runs first."""
    rows = _chosen(call).jobs(call.span, call["queues"])
    return CoveredPage(**page_of_rows(rows, call), **_coverage(call, call["queues"]))


@resource("/jobs/{job}", *RANGE, SOURCE)
def job(call: ApiCall) -> JobReply:
    """Show the runs of one job."""
    past = _chosen(call).job(call.span, call["job"])
    bars = map(HistogramBar, (*BOUNDS_MS, None), past.histogram)
    return JobReply.of(
        past, histogram=list(bars), slowest=_shown(call, past.slowest), **_coverage(call)
    )


@resource("/errors", QUEUES, Parameter("job", "Only this job."), *RANGE, SOURCE, *PAGING)
def errors(call: ApiCall) -> CoveredPage[ErrorFigures]:
    """List groups of errors, most frequent first."""
    rows = _chosen(call).errors(call.span, call["queues"], call["job"])
    return CoveredPage(**page_of_rows(_shown(call, rows), call), **_coverage(call, call["queues"]))


@resource("/errors/{group}", *RANGE, SOURCE)
def error(call: ApiCall) -> ErrorReply:
    """Show one group of errors and the latest runs with these errors."""
    past = _chosen(call).error(call.span, call["group"])
    if past.figures is None:
        raise NotThereError("this group has no errors in the range; choose a longer range")
    [figures], newest = _shown(call, [past.figures]), _shown(call, past.newest)
    return ErrorReply(figures, newest, **_coverage(call))


@resource(
    "/history", Parameter("queue", "Only this queue."),
    Parameter("job", "Only this job."), Parameter("kind", "Only this kind.", values=("", *ENDS)),
    Parameter("mid", "Only this message."), Parameter("group", "Only this group of errors."),
    Parameter("worker", "Only this worker."), *RANGE, SOURCE, *PAGING,
)  # fmt: skip
def history(call: ApiCall) -> CoveredPage[RunRow]:
    """List ended attempts, latest first."""
    wanted = Wanted(**{name: call[name] for name in Wanted._fields})
    cursor = read_cursor(call["cursor"], str) or ""
    page = _chosen(call).runs(call.span, wanted, cursor, call["limit"])
    following = None if page.next_cursor is None else cursor_text(page.next_cursor)
    covered = _coverage(call, [wanted.queue] if wanted.queue else ())
    return CoveredPage(items=_shown(call, page.runs), next=following, **covered)


@resource(
    "/autoscale",
    Parameter("queues", "The queues to serve, separated by commas.", "names", needed=True),
    Parameter("target_wait", "Waiting messages should start within this time.", "duration", default="30s"),
)  # fmt: skip
def autoscale(call: ApiCall) -> Demand:
    """Return the number of slots that queues need, for KEDA's metrics-api scaler."""
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


def _shown(call: ApiCall, rows: Sequence[Failure]) -> list[Failure]:
    return with_shown_errors(rows, call.site.settings.hide_errors)
