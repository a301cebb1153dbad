"""Jobs, errors and ended attempts, from the events on the server or from a lake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jobq.durations import counted
from jobq.errors import ConfigError, JobqError, LakeError
from jobq.observe.chart import (
    ChartFrame,
    ChartLine,
    Drawing,
    Mark,
    TimeAxis,
    column_chart,
    key,
    line_chart,
    sparkline,
)
from jobq.queue import presence
from jobq.web import formats
from jobq.web.charts import ChartView, starts
from jobq.web.filters import MAX_CHARACTERS, quoted
from jobq.web.findings import MAX_COUNT, PageFinding, finder
from jobq.web.history import (
    BOUNDS_MS,
    ENDS,
    POINTS,
    ErrorFigures,
    Failure,
    JobFigures,
    JobHistory,
    RunRow,
    Span,
    StreamHistory,
    Wanted,
    shown_error,
    with_shown_errors,
)
from jobq.web.lake import LakeHistory
from jobq.web.live import sampler_of, snapshot_of
from jobq.web.new_errors import NEW_MS, ErrorGroups, NewError
from jobq.web.preferences import preferences, zone_of
from jobq.web.rendering import render
from jobq.web.routes import nav, page
from jobq.web.sampler import Snapshot
from jobq.web.site import Site, site_of
from jobq.web.sources import SOURCES, HistorySources, sources_of
from jobq.web.tracebacks import tracebacks
from jobq.web.viewer import contents_of

T = TypeVar("T")
#: Lengths of ranges in seconds. A lake, if there is one, is queried beyond an hour.
RANGES = {"15m": 900, "1h": 3_600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
#: Refresh interval of these pages in seconds. Pages with figures from a lake don't refresh.
EVERY_S = 10.0
#: Rows on a page of attempts, and in the table below a chart.
MAX_RUNS, TABLE_ROWS = 100, 12
#: Maximum number of deploys for which the failures of an error are counted.
MAX_DEPLOYS = 6

nav("jobs", "Jobs", section="Now", order=30, key="j")
nav("errors", "Errors", section="Now", order=31, key="e")
nav("history", "History", section="Records", order=80, key="h")


@finder
def new_errors(site: Site, snapshot: Snapshot) -> list[PageFinding]:
    """Find errors that were first seen in the last 15 minutes."""
    sampler = sampler_of(site)
    news = sampler.follower(ErrorGroups).new(snapshot.at_ms, sampler.tail.since_ms, MAX_COUNT)
    marks = starts(snapshot.workers, (snapshot.at_ms - NEW_MS) / 1000)
    return [
        PageFinding(
            "dead", "new error", shown_error(new_error.error, site.settings.hide_errors), _new_error(new_error, marks),
            "error", {"fingerprint": new_error.group}, new_error.first_at,
        )
        for new_error in news
    ]  # fmt: skip


def _new_error(new_error: NewError, marks: Sequence[Mark]) -> str:
    before = [mark.name for mark in marks if mark.at * 1000 <= new_error.first_at]
    more = f" and {counted(new_error.jobs - 1, 'more job')}" * (new_error.jobs > 1)
    after = f" It began after {before[-1]}." if before else ""
    attempts = counted(new_error.failures, "attempt")
    dead = f"; {counted(new_error.dead, 'message')} dead" * (new_error.dead > 0)
    return (
        f"{attempts} of {new_error.job or 'an unknown job'}{more} failed with this error in "
        f"{', '.join(new_error.queues[:3])}{dead}.{after}"
    )


class AskedRange(NamedTuple):
    """The range of time in a request, and the source of the page's figures.

    Attributes:
        word: Name of the range in RANGES.
        error: Why the figures can't be read, or ''.
    """

    word: str
    source: str
    span: Span
    history: StreamHistory | LakeHistory
    sources: HistorySources
    error: str = ""

    @property
    def live(self) -> float:
        """Refresh interval of the page in seconds; 0 for never."""
        return EVERY_S if self.history is self.sources.events else 0


def asked_range(request: Request) -> AskedRange:
    """Parse the query parameters `range` and `source`."""
    site = site_of(request)
    word, source = (request.query_params.get(name, "") for name in ("range", "source"))
    word = word if word in RANGES else "1h"
    source = source if source in SOURCES else "auto"
    now_ms, sources, error = site.client.clock_ms(), sources_of(site), ""
    span = Span(now_ms + 1 - 1000 * RANGES[word], now_ms + 1)
    try:
        history = sources.choose(span, source)
    except ConfigError as refused:
        history, error = sources.events, str(refused)
    return AskedRange(word, source, span, history, sources, error)


def _read(asked: AskedRange, read: Callable[[], T]) -> tuple[T | None, AskedRange]:
    try:
        return read(), asked
    except LakeError as error:
        return None, asked._replace(error=str(error))


def _facts(request: Request, asked: AskedRange) -> dict[str, Any]:
    """Return the values that `parts/history.html` shows about the source of the figures."""
    since, unread = asked.span.since, dict[str, str]()
    if isinstance(asked.history, StreamHistory):
        events = asked.history.events_in(asked.span)
        since, unread = events.since, events.unread
    return {
        "asked": asked, "ranges": list(RANGES), "since": since, "unread": unread,
        "complete": since <= asked.span.since, "has_lake": asked.sources.lake is not None,
    }  # fmt: skip


_ORDERS: dict[str, Callable[[JobFigures], Any]] = {
    "runs": lambda figures: -figures.runs,
    "job": lambda figures: figures.job,
    "failed": lambda figures: (-figures.failed / max(1, figures.runs), -figures.failed),
    "run": lambda figures: -(figures.run_ms.p95 or 0),
    "wait": lambda figures: -(figures.wait_ms.p95 or 0),
    "memory": lambda figures: -figures.rss_kib,
}


@page("/jobs")
def jobs(request: Request) -> Response:
    """List jobs with runs."""
    asked = asked_range(request)
    figures, asked = _read(asked, lambda: asked.history.jobs(asked.span))
    sort, part = request.query_params.get("sort", ""), request.query_params.get("f", "")[:200]
    sort = sort if sort in _ORDERS else "runs"
    rows = sorted(
        (row for row in figures or () if part.lower() in row.job.lower()), key=_ORDERS[sort]
    )
    return render(
        request,
        "jobs.html",
        live=asked.live,
        rows=rows,
        sort=sort,
        part=part,
        **_facts(request, asked),
    )


@page("/jobs/{job}")
def job(request: Request) -> Response:
    """Show one job: its figures over time, its run times, its slowest runs and its errors."""
    name, asked = request.path_params["job"], asked_range(request)
    got, asked = _read(asked, lambda: asked.history.job(asked.span, name))
    past = got or JobHistory(None, (), (), ())
    failed, asked = _read(asked, lambda: asked.history.errors(asked.span, job=name))
    errors = _shown(request, failed) if failed else []
    marks = marks_of(request, asked)
    return render(
        request, "job.html", live=asked.live, job=name, history=past, errors=errors,
        charts=_job_charts(request, asked, past, marks), slowest=_shown(request, past.slowest),
        known=_known_by(request, name), spark=_spark, **_facts(request, asked),
    )  # fmt: skip


@page("/errors")
def errors(request: Request) -> Response:
    """List groups of errors."""
    asked = asked_range(request)
    groups, asked = _read(asked, lambda: asked.history.errors(asked.span))
    part = request.query_params.get("f", "")[:200]
    rows = [
        row for row in groups or () if part.lower() in f"{row.error} {' '.join(row.jobs)}".lower()
    ]
    seen, asked = _read(asked, lambda: _first_seen(asked, rows))
    since, asked = _read(asked, lambda: _known_since(asked))
    first, known = seen or {}, since or asked.span.until
    marks = marks_of(request, asked)
    return render(
        request, "errors.html", live=asked.live, rows=_shown(request, rows), part=part, first=first,
        news={row.group: _news(first.get(row.group, row.first_at), known, asked.span, marks) for row in rows},
        spark=_spark, **_facts(request, asked),
    )  # fmt: skip


@page("/errors/{fingerprint}")
def error(request: Request) -> Response:
    """Show one group of errors: its trend, its newest traceback and its newest runs."""
    group, asked = request.path_params["fingerprint"], asked_range(request)
    past, asked = _read(asked, lambda: asked.history.error(asked.span, group))
    figures = past.figures if past else None
    rows = [figures] if figures else []
    seen, asked = _read(asked, lambda: _first_seen(asked, rows))
    since, asked = _read(asked, lambda: _known_since(asked))
    first, known = seen or {}, since or asked.span.until
    marks = marks_of(request, asked)
    return render(
        request, "error_group.html", live=asked.live, group=group,
        figures=_shown(request, rows)[0] if rows else None,
        first=first.get(group, figures.first_at if figures else None),
        news=_news(first.get(group, figures.first_at), known, asked.span, marks) if figures else "",
        chart_view=_trend_chart(request, asked, figures, marks) if figures else None,
        of_dead=_filter_of_dead(figures) if figures else "", deploys=_by_deploy(asked, group, marks) if figures else [],
        newest=_shown(request, past.newest if past else ()),
        traceback=_traceback(request, past.newest if past else ()), **_facts(request, asked),
    )  # fmt: skip


@page("/history")
def history(request: Request) -> Response:
    """List ended attempts, latest first."""
    asked, query = asked_range(request), request.query_params
    wanted = Wanted(**{name: query.get(name, "")[:500] for name in Wanted._fields})
    if wanted.kind not in ("", *ENDS):
        raise HTTPException(
            400, f"kind={wanted.kind!r:.40} is unknown; use one of {', '.join(ENDS)}"
        )
    listed, asked = _read(
        asked, lambda: asked.history.runs(asked.span, wanted, query.get("cursor", ""), MAX_RUNS)
    )
    given = {name: value for name, value in wanted._asdict().items() if value}
    return render(
        request, "history.html", live=0 if query.get("cursor") else asked.live, wanted=wanted, given=given, kinds=ENDS,
        rows=_shown(request, listed.runs if listed else ()), following=listed.next_cursor if listed else None,
        **_facts(request, asked),
    )  # fmt: skip


def _filter_of_dead(figures: ErrorFigures) -> str:
    """Return a filter for dead messages with this error or, for a crash, for all dead messages of the job."""
    if figures.group != figures.error:  # the group is a fingerprint
        return f"fingerprint:{quoted(figures.group)}"
    jobs = ",".join(quoted(job) for job in figures.jobs if job)
    return f"job:{jobs}" if jobs and len(jobs) < MAX_CHARACTERS - 4 else ""


def _shown(request: Request, rows: Sequence[Failure]) -> list[Failure]:
    return with_shown_errors(rows, site_of(request).settings.hide_errors)


def _first_seen(asked: AskedRange, rows: Sequence[ErrorFigures]) -> dict[str, int]:
    lake = asked.sources.lake
    first = lake.first_seen([row.group for row in rows]) if lake else {}
    return {row.group: min(row.first_at, first[row.group]) for row in rows if row.group in first}


def _by_deploy(
    asked: AskedRange, group: str, marks: Sequence[Mark]
) -> list[tuple[str, int | None, int]]:
    """Return the latest deploys in the range: name, time in ms, and number of failures until the next deploy.

    The last entry, named '', counts the failures before these deploys.
    """
    newest = marks[-MAX_DEPLOYS:]
    if not newest:
        return []
    moments = [round(mark.at * 1000) for mark in newest]
    counts, _ = _read(asked, lambda: asked.history.failures_between(asked.span, group, moments))
    if counts is None:
        return []
    rows = zip([mark.name for mark in newest], moments, counts[1:], strict=True)
    return [*reversed(list(rows)), ("", None, counts[0])]


def _known_since(asked: AskedRange) -> int:
    """Return when the events in the range begin. An error that was first seen at that time may be older."""
    if isinstance(asked.history, LakeHistory):
        return max(asked.span.since, asked.history.begins_at())
    events = asked.history.events_in(asked.span).events
    return min((event.finished_at for _, event in events), default=asked.span.until)


def _news(first_at: int, known_since: int, span: Span, marks: Sequence[Mark]) -> str:
    """Return a new error's label, `new since DEPLOY` or `new`; '' for an old error."""
    before = [mark for mark in marks if mark.at * 1000 <= first_at]
    if before:
        return f"new since {before[-1].name}"
    return "new" if first_at > known_since + (span.until - span.since) // 10 else ""


def marks_of(request: Request, asked: AskedRange) -> list[Mark]:
    """Return the deploys in the range: the marks in the lake, and minutes in which workers started."""
    marks = starts(snapshot_of(request).workers, asked.span.since / 1000)
    if asked.sources.lake is not None:
        try:
            marks += [
                Mark(mark.at / 1000, mark.name) for mark in asked.sources.lake.marks(asked.span)
            ]
        except LakeError:
            pass  # reported on the page where its figures come from the lake
    return sorted(marks)


def _spark(values: Sequence[int]) -> Any:
    return sparkline([float(value) for value in values], "dead")


def _axis(request: Request, asked: AskedRange, marks: Sequence[Mark]) -> TimeAxis:
    zone = zone_of(preferences(request.cookies).zone, request.cookies)
    span = asked.span
    return TimeAxis(
        zone=zone, since=span.since / 1000, until=span.until / 1000, marks=marks, height=180
    )


def _lines(
    name: str, title: str, lines: Sequence[ChartLine], axis: TimeAxis, label: Callable[[float], str]
) -> ChartView:
    says = f"{title}: {', '.join(line.name for line in lines)}."
    drawing = line_chart(ChartFrame(name, title, says), lines, axis, label)
    zone, now = axis.zone, formats.at_ms(1000 * (axis.until or 0))
    assert isinstance(zone, ZoneInfo)
    step = max(1, POINTS // TABLE_ROWS)
    rows = []
    for first in range(0, len(lines[0].points), step):
        parts = [line.points[first : first + step] for line in lines]
        greatest = [max((v for _, v in part if v is not None), default=None) for part in parts]
        shown = (formats.UNKNOWN if value is None else label(value) for value in greatest)
        rows.append((formats.time(formats.at_ms(1000 * parts[0][0][0]), now, zone), *shown))
    legend = key(lines) if len(lines) > 1 else Drawing()
    return ChartView(name, title, drawing, legend, ("From", *(line.name for line in lines)), rows)


def _job_charts(
    request: Request, asked: AskedRange, past: JobHistory, marks: Sequence[Mark]
) -> list[ChartView]:
    if not past.points or past.figures is None:
        return []
    axis, per = _axis(request, asked, marks), formats.per(asked.span.step // 1000)
    counted = [
        ChartLine(
            name, style, [(point.at / 1000, float(getattr(point, name))) for point in past.points]
        )
        for name, style in (("done", "done"), ("failed", "retry"))
    ]
    p95 = [
        (point.at / 1000, None if point.p95_ms is None else point.p95_ms / 1000)
        for point in past.points
    ]
    return [
        _lines("runs", f"Attempts per {per}", counted, axis, formats.number),
        _lines(
            "p95",
            "Run, 95th percentile",
            [ChartLine("run", "running", p95)],
            axis,
            formats.duration,
        ),
        _spread(past.histogram),
    ]


def _spread(histogram: Sequence[int]) -> ChartView:
    names = [formats.duration(most / 1000) for most in BOUNDS_MS]
    columns = list(zip([*names, f"> {names[-1]}"], map(float, histogram), strict=True))
    title = "Attempts by run time"
    drawing = column_chart(ChartFrame("spread", title, title), columns, formats.number)
    rows = [(name, formats.whole(n)) for name, n in columns if n]
    return ChartView("spread", title, drawing, Drawing(), ("Up to", "Attempts"), rows)


def _trend_chart(
    request: Request, asked: AskedRange, figures: ErrorFigures, marks: Sequence[Mark]
) -> ChartView:
    span = asked.span
    points = [
        ((span.since + n * span.step) / 1000, float(count)) for n, count in enumerate(figures.trend)
    ]
    line = ChartLine("failures", "dead", points)
    title = f"Failures per {formats.per(span.step // 1000)}"
    return _lines("trend", title, [line], _axis(request, asked, marks), formats.number)


def _known_by(request: Request, name: str) -> tuple[int, int] | None:
    """Count the live workers that can run a job, and all live workers. Return None if a worker's jobs are unknown."""
    snapshot, client = snapshot_of(request), site_of(request).client
    live = [worker for worker in snapshot.workers if worker.is_live(snapshot.at_ms)]
    try:
        names = presence.job_names(client, (worker.jobs for worker in live))
    except JobqError:
        return None
    known = [names.get(worker.jobs) for worker in live]
    if None in known:
        return None
    return sum(name in jobs for jobs in known if jobs is not None), len(live)


def _traceback(request: Request, newest: Sequence[RunRow]) -> str:
    texts = tracebacks(site_of(request).client, contents_of(request), newest)
    return next((texts[run] for run in newest if run in texts), "")
