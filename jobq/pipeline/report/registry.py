"""The list of reports, each with its question, columns, parameters and chart.

A report is a query over the view `events`, in `sql/<name>.sql`. Its `parameters` are names of placeholders in that
file; `ReportQuery.values` has their values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Literal

from jobq.errors import ConfigError
from jobq.pipeline.options import unknown

Unit = Literal["text", "count", "ms", "us", "share", "times", "decimal", "kib", "time", "weekday"]


@dataclass(frozen=True)
class ReportColumn:
    """One column of a result.

    Attributes:
        unit: Format of its values.
    """

    name: str
    heading: str
    unit: Unit = "text"


@dataclass(frozen=True)
class Chart:
    """The chart of a report: lines of `y` over `x` (one per `by`), bars of `y` per `x`, or `y` by weekday and hour."""

    kind: Literal["bars", "lines", "heat"]
    x: tuple[str, ...]
    y: str
    #: Explanation of the chart, its marks and shades.
    caption: str
    by: str | None = None
    #: The value of a reference line.
    mark: float | None = None
    #: Keep the order of the rows; otherwise the largest bars come first.
    ordered: bool = False


@dataclass(frozen=True)
class Report:
    """A report: the question that it answers, its SQL statement, and the columns and chart of its result."""

    name: str
    title: str
    question: str
    columns: tuple[ReportColumn, ...]
    #: How to read the answer, and its limits.
    beware: str
    #: Explanation of an empty answer.
    empty: str
    chart: Chart = field(kw_only=True)
    parameters: tuple[str, ...] = ()
    #: The columns of the statement, if Python computes the result from them.
    raw: tuple[str, ...] = field(default=())
    #: Source for days with expired events: hours of rollup_hourly, or first runs or ends of flows in job_runs.
    rollup: Literal["", "hours", "runs", "flows"] = field(default="", kw_only=True)
    #: Without a rollup: data missing from the rollups. With a rollup: a note about its figures.
    lacks: str = field(default="", kw_only=True)
    #: Whether its hours follow the time zone.
    follows_zone: bool = field(default=False, kw_only=True)

    @cached_property
    def sql(self) -> str:
        """The report's SQL statement, including the shared subquery for time buckets."""
        return statement(self.name).replace("{stretches}", statement("stretches").strip())

    def column(self, name: str) -> ReportColumn:
        return next(column for column in self.columns if column.name == name)

    @property
    def answered(self) -> tuple[str, ...]:
        """Names of the statement's columns."""
        return self.raw or tuple(column.name for column in self.columns)


def statement(name: str) -> str:
    """Return the text of `sql/<name>.sql`."""
    return (files("jobq.pipeline") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


_QUEUE, _JOB = ReportColumn("queue", "queue"), ReportColumn("job", "job")
_FIRST, _LAST = (
    ReportColumn("first_seen", "first seen", "time"),
    ReportColumn("last_seen", "last seen", "time"),
)
_AT = ReportColumn("at", "from", "time")
_ERROR, _PRINT = ReportColumn("error", "error"), ReportColumn("fingerprint", "fingerprint")
_DEAD, _DONE = ReportColumn("dead", "dead", "count"), ReportColumn("done", "done", "count")
_ATTEMPTS, _MESSAGES = (
    ReportColumn("attempts", "attempts", "count"),
    ReportColumn("messages", "messages", "count"),
)
_GRID = ("since", "until", "edges", "start_s", "unit_s")

WAIT = Report(
    "queue-time", "Wait", "How long do messages wait for their first run?",
    (_QUEUE, _JOB, _MESSAGES, ReportColumn("p50_ms", "p50", "ms"), ReportColumn("p95_ms", "p95", "ms"),
     ReportColumn("p99_ms", "p99", "ms"), ReportColumn("max_ms", "longest", "ms")),
    "Time from enqueue to the start of the first attempt, including a requested delay. Enqueue times are by the "
    "producer's clock. Waiting messages aren't included.",
    "No started messages with a known enqueue time in the range.",
    chart=Chart("bars", ("queue", "job"), "p95_ms", "95th percentile of the wait"),
    rollup="runs", lacks="Rollups count a revived message once.",
)  # fmt: skip
RUN = Report(
    "run-time", "Run time", "How long do attempts run?",
    (_QUEUE, _JOB, _ATTEMPTS, ReportColumn("p50_us", "p50", "us"), ReportColumn("p95_us", "p95", "us"),
     ReportColumn("p99_us", "p99", "us"), ReportColumn("max_us", "longest", "us"),
     ReportColumn("total_us", "together", "us")),
    "Every attempt ended by a child, with any outcome; attempts lost with their host have no run time.",
    "No attempts with a known run time in the range.",
    chart=Chart("bars", ("queue", "job"), "p95_us", "95th percentile of the run time"),
    rollup="hours",
)  # fmt: skip
THROUGHPUT = Report(
    "throughput", "Throughput", "How many attempts end, and how?",
    (_AT, _QUEUE, _DONE, ReportColumn("failed", "failed", "count"), _DEAD,
     ReportColumn("done_per_s", "done per s", "decimal")),
    "Failed attempts were retried: retries, crashes, expired locks. If the range cuts the first or the last "
    "interval, rates use the remaining length.",
    "No attempt ended in the range.",
    parameters=_GRID, chart=Chart("lines", ("at",), "done_per_s", "Attempts done per second", "queue"),
    rollup="hours", follows_zone=True,
)  # fmt: skip
HEATMAP = Report(
    "heatmap", "Hours of the week", "When is there work?",
    (ReportColumn("weekday", "weekday", "weekday"), ReportColumn("hour", "hour", "count"), _ATTEMPTS,
     ReportColumn("failed", "not done", "count"), ReportColumn("per_hour", "mean per hour", "decimal")),
    "The mean covers all hours of that kind in the range, including empty hours; parts of hours count in proportion. "
    "Hours are in the report's time zone.",
    "No attempt ended in the range.",
    parameters=("since", "until", "zone"),
    chart=Chart("heat", ("weekday", "hour"), "per_hour", "Mean number of attempts per hour"),
    rollup="hours", follows_zone=True,
)  # fmt: skip
ERRORS = Report(
    "errors", "Errors", "Which errors occur, and which are new?",
    (_FIRST, _LAST, _ERROR, ReportColumn("attempts", "attempts", "count"), _DEAD, ReportColumn("jobs", "jobs"), _PRINT),
    "Sorted by first occurrence, latest first. 'First seen' means first in this range, even for older errors, "
    "so begin the "
    "range well before the time of interest. The same error from the same place in the code has the same fingerprint.",
    "Nothing failed.",
    chart=Chart("bars", ("error", "jobs"), "attempts", "Failed attempts by error"),
    lacks="errors",
)  # fmt: skip
RETRIES = Report(
    "retries", "Retries", "How many attempts does a finished message take?",
    (_QUEUE, _JOB, _ATTEMPTS, _DONE, _DEAD, ReportColumn("retried", "retried", "count"),
     ReportColumn("crashed", "crashed", "count"), ReportColumn("amplification", "per finished", "decimal"),
     ReportColumn("failing", "failing", "share"), ReportColumn("failed_time", "time on failures", "share")),
    "Attempts per finished message, done or dead; jobs without finished messages sort first. 1 is ideal. "
    "Messages started before or ended after the range distort it slightly. Attempts lost with their host lack a job.",
    "No attempt ended in the range.",
    chart=Chart("bars", ("queue", "job"), "amplification",
                "Attempts per finished message; the dashed line is 1, the ideal", mark=1.0),
    rollup="hours",
)  # fmt: skip
SCHEDULES = Report(
    "schedules", "Schedules", "How late do scheduled calls start?",
    (_QUEUE, ReportColumn("schedule", "schedule"), ReportColumn("ticks", "ticks", "count"),
     ReportColumn("started", "started", "count"), ReportColumn("skipped", "skipped", "count"),
     ReportColumn("missed", "missed", "count"), ReportColumn("p50_ms", "p50", "ms"),
     ReportColumn("p95_ms", "p95", "ms"), ReportColumn("p99_ms", "p99", "ms"), ReportColumn("max_ms", "longest", "ms")),
    "Time between a tick's due time and the first start of its call. Skipped ticks have no call, because the previous "
    "run wasn't over or the key's queue was full; missed ticks had no worker, even if a later tick replaced "
    "them. Calls started after the range aren't counted as started.",
    "No schedule had a tick in the range.",
    chart=Chart("bars", ("queue", "schedule"), "p95_ms", "95th percentile of the lateness"),
    lacks="ticks of schedules",
)  # fmt: skip
BACKLOG = Report(
    "backlog", "Backlog", "How many messages waited for their first run?",
    (_AT, _QUEUE, ReportColumn("enqueued", "enqueued", "count"), ReportColumn("started", "started", "count"),
     ReportColumn("most", "maximum", "count"), ReportColumn("waiting", "waiting at the end", "count"),
     ReportColumn("basis", "known from")),
    "At event level all, enqueues are counted; else only started messages, so messages that never started are missing "
    "and the last values are too low. Delayed messages count as waiting; retries don't.",
    "No messages were enqueued or started in the range.",
    parameters=_GRID, chart=Chart("lines", ("at",), "most", "Maximum number of waiting messages", "queue"),
    rollup="runs",
    lacks="Rollups lack messages that never started.",
)  # fmt: skip
SLO = Report(
    "slo", "Service level", "Does each queue start its messages in time?",
    (_QUEUE, _MESSAGES, ReportColumn("late", "late", "count"), ReportColumn("within", "in time", "share"),
     ReportColumn("burn", "burn", "decimal"), ReportColumn("last_5m", "last 5 m", "decimal"),
     ReportColumn("last_1h", "last 1 h", "decimal"), ReportColumn("worst_5m", "worst 5 m", "decimal"),
     ReportColumn("worst_1h", "worst 1 h", "decimal"), ReportColumn("worst_at", "worst at", "time"),
     ReportColumn("alert_minutes", "alert minutes", "count")),
    "A burn of 1 spends the error budget exactly; an alert minute has both windows at or over the paging rate. Only "
    "started messages count: a stopped queue doesn't burn budget here, but appears in the backlog.",
    "No started messages with a known enqueue time in the range.",
    parameters=("target_ms", "objective", "page_burn"),
    chart=Chart("bars", ("queue",), "worst_1h",
                "Burn rate in the worst hour; at the dashed line the budget just lasts", mark=1.0),
    rollup="runs", lacks="Rollups count a revived message once.",
)  # fmt: skip
CAPACITY = Report(
    "capacity", "Capacity", "How many workers meet the wait target in the busiest hour?",
    (ReportColumn("weights", "queue weights"), ReportColumn("workers", "workers", "count"),
     ReportColumn("busy", "busy", "share"), ReportColumn("formula_us", "mean wait, formula", "us"),
     ReportColumn("mean_us", "mean wait", "us"), ReportColumn("p95_us", "p95 wait", "us"),
     ReportColumn("p99_us", "p99 wait", "us"),
     ReportColumn("within", "in time", "share"), ReportColumn("worst_queue", "worst queue"),
     ReportColumn("worst_within", "its share", "share"), ReportColumn("meets", "holds")),
    "A simulation of the busiest hour: its arrivals are served in order by this many workers. The formula "
    "is an approximation for one queue. A worker runs one job at a time. Delayed messages and retries arrive as "
    "recorded, so real demand may be smoother; more workers may slow down shared resources.",
    "No attempts with a known run time in the range.",
    parameters=("trace_rows",),
    chart=Chart("bars", ("workers", "weights"), "p95_us",
                "95th percentile of the wait, by workers and weights", ordered=True),
    raw=("queue", "arrived_us", "run_us", "counted", "observed_us"),
    lacks="single arrivals and runs",
)  # fmt: skip
REGRESSIONS = Report(
    "regressions", "Regressions", "Which jobs got slower?",
    (_JOB, ReportColumn("verdict", "verdict"), ReportColumn("change", "change", "share"),
     ReportColumn("before_us", "median before", "us"), ReportColumn("after_us", "after", "us"),
     ReportColumn("low_us", "difference from", "us"), ReportColumn("high_us", "to", "us"),
     ReportColumn("n_before", "runs before", "count"), ReportColumn("n_after", "runs after", "count")),
    "Median run time of successful attempts, with an interval of the difference that holds for all jobs "
    "together at the requested confidence. It assumes independent runs; other inputs, another "
    "machine or another hour of the day can slow jobs as a deploy can.",
    "No successful attempts in the range.",
    parameters=("at", "confidence", "least_runs"),
    chart=Chart("bars", ("job",), "change", "Change of the median; faint changes may be chance"),
    raw=("job", "n_before", "n_after", "before_us", "after_us", "before_low", "before_high", "after_low", "after_high"),
    lacks="single runs",
)  # fmt: skip
ANOMALIES = Report(
    "anomalies", "Anomalies", "In which hours was a job unusually slow?",
    (ReportColumn("hour", "hour", "time"), _JOB, _ATTEMPTS, ReportColumn("p95_us", "p95", "us"),
     ReportColumn("median_us", "usual p95", "us"), ReportColumn("times", "times", "times"),
     ReportColumn("score", "score", "decimal")),
    "The hour's p95 against the job's median hour, in robust standard deviations; scores over 3.5 are listed. Jobs "
    "with too few hours or runs are left out, and jobs that are slow in most hours count as normal.",
    "No hour stood out among the jobs with enough hours and runs.",
    parameters=("zone", "min_runs", "min_hours", "min_score"),
    chart=Chart("bars", ("job", "hour"), "score", "Score of the hour"),
    rollup="hours", follows_zone=True,
)  # fmt: skip
DEAD = Report(
    "dead", "Dead letters", "Which messages died, and why?",
    (_QUEUE, _JOB, _ERROR, _MESSAGES, ReportColumn("share", "share", "share"),
     ReportColumn("attempts", "attempts each", "decimal"), _FIRST, _LAST, ReportColumn("examples", "newest mids"),
     _PRINT),
    "Messages that died in the range; some may have been revived or purged since. See also jobq dead list.",
    "Nothing died.",
    chart=Chart("bars", ("job", "error"), "messages", "Messages that died"),
    lacks="errors of messages",
)  # fmt: skip
COST = Report(
    "cost", "Cost", "Where do processor time and memory go?",
    (_JOB, _ATTEMPTS, ReportColumn("cpu_us", "CPU", "us"), ReportColumn("cpu_share", "of all CPU", "share"),
     ReportColumn("cpu_each_us", "CPU each", "us"), ReportColumn("run_us", "run time", "us"),
     ReportColumn("run_share", "of all run time", "share"), ReportColumn("cpu_per_run", "CPU / run", "share"),
     ReportColumn("peak_kib", "peak memory", "kib")),
    "Peak memory is the largest process that ever ran the job, including memory of jobs it ran before. CPU / run "
    "near 100 % means that a job computes, near 0 that the job waits.",
    "No attempts with a known run time in the range.",
    chart=Chart("bars", ("job",), "cpu_us", "Processor time of all attempts together"),
    rollup="hours",
)  # fmt: skip
KEYS = Report(
    "keys", "Keys", "How long does each key wait, and what does it cost?",
    (_QUEUE, ReportColumn("key", "key"), _MESSAGES, ReportColumn("p50_ms", "wait p50", "ms"),
     ReportColumn("p95_ms", "wait p95", "ms"), ReportColumn("max_ms", "longest wait", "ms"), _ATTEMPTS,
     ReportColumn("cpu_us", "CPU", "us"), ReportColumn("cpu_share", "of the queue's CPU", "share"),
     ReportColumn("run_us", "run time", "us"), ReportColumn("run_share", "of its run time", "share")),
    "Queues whose messages have keys; the row without a key is for other messages. The wait is the time before "
    "the first run. Older events without a key field count as without a key.",
    "No attempt of the range had a key.",
    chart=Chart("bars", ("queue", "key"), "run_us", "Run time of all attempts of the key together"),
    lacks="keys",
)  # fmt: skip
FLOWS = Report(
    "flows", "Flows", "How long do flows take, and which steps decide it?",
    (ReportColumn("flow", "flow"), ReportColumn("step", "step"), ReportColumn("flows", "flows", "count"),
     ReportColumn("members", "members", "count"), ReportColumn("failed", "failed", "count"),
     ReportColumn("p50_ms", "p50", "ms"), ReportColumn("p95_ms", "p95", "ms"), ReportColumn("max_ms", "longest", "ms"),
     ReportColumn("decides", "on the path", "share"), ReportColumn("share", "of the flow's time", "share"),
     ReportColumn("path", "most common path")),
    "By the flow's name; the row without a step is the whole flow. A step lasts from the enqueue of its first message "
    "to the end of its last. Edges aren't in the history: a step counts as having waited for the step that ended last "
    "before it was enqueued. Waits, timers and steps ending outside the range are missing.",
    "No step of a flow ended in the range.",
    chart=Chart("bars", ("flow", "step"), "p95_ms", "95th percentile of the time"),
    rollup="flows", lacks="Rollups count a revived message when it has ended again.",
)  # fmt: skip

REPORTS = (
    REGRESSIONS, ANOMALIES, ERRORS, DEAD, RETRIES, SLO, WAIT, SCHEDULES, FLOWS, BACKLOG, CAPACITY, RUN, THROUGHPUT,
    HEATMAP, COST, KEYS,
)  # fmt: skip
NAMES = tuple(report.name for report in REPORTS)


def named(name: str) -> tuple[Report, ...]:
    """Return the report with this name, or all reports for `all`."""
    if name == "all":
        return REPORTS
    reports = tuple(report for report in REPORTS if report.name == name)
    if not reports:
        raise ConfigError(unknown("report", name, ("all", *NAMES)))
    return reports
