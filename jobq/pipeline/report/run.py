"""Run reports: their statements over the view `events`, then what Python adds to two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jobq.pipeline.report import registry
from jobq.pipeline.report.asked import Asked, iso
from jobq.pipeline.report.interval import LEAST, Side, difference
from jobq.pipeline.report.registry import Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A report's answer. `notes`: what to know of this answer; `more`: rows that the limit left out."""

    report: Report
    rows: Sequence[Row]
    notes: Sequence[str] = field(default=())
    more: bool = False


def frame(spark: SparkSession, report: Report, asked: Asked) -> DataFrame:
    """The statement's own answer, not yet computed."""
    args = {name: asked.values[name] for name in report.parameters}
    return spark.sql(report.sql, args)


def run(spark: SparkSession, report: Report, asked: Asked) -> Result:
    """The whole answer."""
    answer = frame(spark, report, asked)
    # A time line cut short would mislead, and what Python goes on with must be whole.
    whole = bool(report.raw) or report.chart.kind == "lines"
    limit = 0 if whole else asked.limit
    rows = (answer.limit(limit + 1) if limit else answer).toArrow().to_pylist()
    if rows and report.name in _GOES_ON:
        return _GOES_ON[report.name](spark, report, asked, rows)
    more = bool(limit) and len(rows) > limit
    return Result(report, rows[:limit] if more else rows, more=more)


def judge(report: Report, asked: Asked, rows: Sequence[Row]) -> Result:
    """Regressions: each job's verdict, the worst first."""
    enough = [row for row in rows if min(row["n_before"], row["n_after"]) >= LEAST]
    judged = [_judged(row, asked) for row in rows]
    judged.sort(key=lambda row: (_ORDER[row["verdict"]], -abs(row["change"] or 0), row["job"]))
    name = asked.at_name or "the middle of the range, as no mark lies in it"
    notes = [
        f"Before and after {iso(asked.compared_at)} ({name}), {len(enough):,} of {len(rows):,} jobs with {LEAST} "
        f"runs or more on both sides. The intervals hold together at {100 * asked.confidence:.4g} %; slower or faster "
        f"means by more than {100 * asked.min_change:.4g} %."
    ]
    if len(judged) > asked.limit > 0:
        return Result(report, judged[: asked.limit], notes, more=True)
    return Result(report, judged, notes)


SLOWER, FASTER, SAME, TOO_FEW = "slower", "faster", "no change shown", "not enough data"
_ORDER = {SLOWER: 0, FASTER: 1, SAME: 2, TOO_FEW: 3}


def _judged(row: Row, asked: Asked) -> Row:
    told = {name: row[name] for name in ("job", "before_us", "after_us", "n_before", "n_after")}
    judged: Row = {**told, "verdict": TOO_FEW, "change": None, "low_us": None, "high_us": None}
    if row["before_us"] and row["after_us"] is not None:
        judged["change"] = row["after_us"] / row["before_us"] - 1
    if min(row["n_before"], row["n_after"]) < LEAST:
        return judged
    found = difference(
        *(
            Side(row[f"{side}_us"], row[f"{side}_low"], row[f"{side}_high"])
            for side in ("before", "after")
        )
    )
    least = asked.min_change * row["before_us"]
    verdict = SLOWER if found.low > least else FASTER if found.high < -least else SAME
    return judged | {"verdict": verdict, "low_us": found.low, "high_us": found.high}


def _capacity(spark: SparkSession, report: Report, asked: Asked, rows: list[Row]) -> Result:
    from jobq.pipeline.report.capacity import sized

    found, notes = sized(spark, asked, rows)
    return Result(report, found, notes)


_GOES_ON: Mapping[str, Callable[[SparkSession, Report, Asked, list[Row]], Result]] = {
    registry.CAPACITY.name: _capacity,
    registry.REGRESSIONS.name: lambda _, report, asked, rows: judge(report, asked, rows),
}
