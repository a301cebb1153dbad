"""Compute the same figures as `jobq.web.history` from a lake, with SQL in a child process that can be killed.

The queries use the SQL dialect and the engine of reports (`jobq.pipeline.report.engines`). The child runs as
`python -m jobq.web.lake`, reads the lake's location from the first line of its stdin, and exits when its stdin closes.
The child answers one query at a time, and is killed if an answer takes longer than MAX_S.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess  # nosec B404
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import IO, Any, NamedTuple

from jobq.client.names import partition_in
from jobq.errors import LakeError
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import RESTORED, TABLES, parted, sourced
from jobq.pipeline.report.engines import LocalEngine
from jobq.pipeline.schema import DERIVED
from jobq.queue.audit_log import AuditEntry
from jobq.web.history import (
    ANYTHING,
    BOUNDS_MS,
    ENDS,
    FAILED,
    MAX_GROUPS,
    POINTS,
    SLOWEST,
    ErrorFigures,
    ErrorHistory,
    JobFigures,
    JobHistory,
    PastPoint,
    Percentiles,
    Point,
    RunPage,
    RunRow,
    Span,
    Wanted,
    page_of,
)

#: How long a query may take, and how large an answer may be.
MAX_S, MAX_BYTES = 10.0, 16 << 20
#: For longer ranges, outcomes are read from hourly sums where they are complete.
ROLLED_MS, DAY_MS = 172_800_000, 86_400_000
#: The second number of an audit entry's id is an unsigned 64-bit number; SQL reads greater values as MAX_SEQ.
MAX_SEQ = 2**63 - 1
_SEQ = f"coalesce(try_cast(split_part(entry_id, '-', 2) AS BIGINT), {MAX_SEQ})"
#: The latest possible day, and the end of the year 9999 in epoch ms.
LAST_DAY = "9999-12-31"
LATEST_MS = 253_402_300_799_999
#: Columns of the view `events` in addition to the stored columns. `first_wait_ms` is the wait of a first attempt.
_EVENTS = f"""{RESTORED["enqueued_at"]} AS enqueued_at, {DERIVED["wait_ms"]} AS wait_ms,
    CASE WHEN attempt <= 1 THEN wait_ms END AS first_wait_ms, unix_millis(finished_at) AS at_ms,
    coalesce(nullif(fingerprint, ''), nullif(error, ''), kind) AS grouped"""
_RUN = "at_ms, queue, part, kind, mid, job, attempt, run_us, total_ms, worker, error, grouped, trace_id"
_POINT = f"least({POINTS - 1}, (at_ms - :since) DIV :step)"


class DeployMark(NamedTuple):
    """A marked time, such as a deploy. Users compare the figures before and after this time."""

    name: str
    at: int


class HistoryFilter(NamedTuple):
    """An SQL condition with its arguments, and the days whose files may contain matching rows."""

    sql: str = "true"
    args: Mapping[str, Any] = MappingProxyType({})
    days: tuple[str, str] = ("", LAST_DAY)

    def __and__(self, other: HistoryFilter) -> HistoryFilter:
        days = max(self.days[0], other.days[0]), min(self.days[1], other.days[1])
        return HistoryFilter(f"{self.sql} AND {other.sql}", {**self.args, **other.args}, days)


EVERYTHING = HistoryFilter()


class LakeHistory:
    """Reads a lake. It is thread-safe, but queries run one at a time."""

    source = "lake"

    def __init__(
        self, path: str, options: Mapping[str, str] | None = None, most_s: float = MAX_S, server: str = ""
    ) -> None:  # fmt: skip
        """Create a reader of a lake.

        Args:
            path, options: See `jobq.pipeline.lake.Lake.open`.
            most_s: Time limit of a query, in seconds.
            server: Source name of this server in the lake. Returned queue names don't contain this source name.
        """
        self.path, self.server = path, server
        self._args = {"mine": sourced(server, ""), "log": sourced(server, "audit")}
        rows = "SELECT * FROM stored WHERE NOT startswith(queue, '{')"
        if server:
            queue = f"substr(queue, {len(self._args['mine']) + 1}) AS queue"
            rows = f"SELECT * EXCEPT (queue), {queue} FROM stored WHERE startswith(queue, :mine)"  # noqa: S608  # nosec B608
        mine = f"SELECT * EXCEPT (queue), {DERIVED['base_queue']} AS queue, queue AS part FROM ({rows})"  # noqa: S608  # nosec B608
        self._mine = {
            "events": f"SELECT *, {_EVENTS} FROM ({mine})",  # noqa: S608  # nosec B608
            "rollup_hourly": mine,
            "audit": "SELECT * FROM stored WHERE log = :log",
            "marks": "SELECT * FROM stored",
        }
        self._has_mine = False
        self._first = json.dumps({"path": path, "options": dict(options or {})})
        self._most_s = most_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def close(self) -> None:
        """Stop the child process. The next query starts a new child."""
        with self._lock:
            self._end()

    def jobs(self, span: Span, queues: Sequence[str] = ()) -> list[JobFigures]:
        """Return figures per job, most runs first."""
        return self._jobs(_within(span, ENDS) & _in_queues(queues))

    def _jobs(self, chosen: HistoryFilter) -> list[JobFigures]:
        rows = self.query(
            """WITH counted AS (
              SELECT job, collect_set(queue) AS queues, count(*) AS runs, count_if(kind = 'done') AS done,
                count_if(kind = 'retry') AS retry, count_if(kind = 'dead') AS dead,
                count_if(kind IN ('crashed', 'recovered')) AS crashed, sketch(run_us, 2000) AS ran,
                sketch(first_wait_ms, 2000) AS waits, avg(CASE WHEN run_us > 0 THEN cpu_us END) AS cpu_us,
                max(rss_kib) AS rss_kib, max(at_ms) AS last_at
              FROM events WHERE {chosen} AND job <> '' GROUP BY job)
            SELECT * EXCEPT (ran, waits), quantile(ran, 0.5) AS run50, quantile(ran, 0.95) AS run95,
              quantile(ran, 0.99) AS run99, quantile(waits, 0.5) AS wait50, quantile(waits, 0.95) AS wait95,
              quantile(waits, 0.99) AS wait99
            FROM counted ORDER BY runs DESC, job LIMIT {most}""",
            chosen, most=MAX_GROUPS,
        )  # fmt: skip
        return [_figures(row) for row in rows]

    def job(self, span: Span, job: str) -> JobHistory:
        """Return a job's figures, its chart and its slowest runs."""
        mine = _within(span, ENDS) & _one_of("job", [job])
        figures = self._jobs(mine)
        points = self.query(
            """WITH counted AS (
              SELECT {point} AS point, count_if(kind = 'done') AS done, count_if(kind <> 'done') AS failed,
                sketch(run_us, 2000) AS ran
              FROM events WHERE {chosen} GROUP BY 1)
            SELECT point, done, failed, quantile(ran, 0.95) AS p95 FROM counted""",
            mine,
        )
        cases = " ".join(
            f"WHEN run_us <= {1000 * most} THEN {n}" for n, most in enumerate(BOUNDS_MS)
        )
        buckets = self.query(
            """SELECT CASE {cases} ELSE {most} END AS bucket, count(*) AS runs
            FROM events WHERE {chosen} AND run_us > 0 GROUP BY 1""",
            mine, cases=cases, most=len(BOUNDS_MS),
        )  # fmt: skip
        by_bucket = {row["bucket"]: row["runs"] for row in buckets}
        by_point = {row["point"]: row for row in points}
        return JobHistory(
            figures[0] if figures else None,
            tuple(by_bucket.get(number, 0) for number in range(len(BOUNDS_MS) + 1)),
            tuple(_chart_point(span, number, by_point.get(number)) for number in range(POINTS)),
            tuple(self._runs(mine, "run_us DESC NULLS LAST", SLOWEST)),
        )

    def outcomes(self, span: Span, queue: str = "") -> list[PastPoint]:
        """Count attempts by outcome in equal parts of a range, for a queue or for all queues.

        Parts without attempts are left out. For ranges longer than ROLLED_MS, hourly sums replace the events of a day
        if the sums are complete.
        """
        mine = _in_queues([queue] if queue else [])
        days = self._rolled(span) if span.until - span.since > ROLLED_MS else []
        sums = {row["point"]: row for row in self._hourly(span, mine, days)} if days else {}
        chosen = _within(span, ENDS) & mine
        if days:
            chosen &= HistoryFilter(f"dt NOT IN ({_dates(days)})")
        rows = self.query(
            """WITH counted AS (
              SELECT {point} AS point, count_if(kind = 'done') AS done, count_if(kind = 'dead') AS dead,
                count(*) AS ends, sketch(first_wait_ms, 2000) AS waits, sketch(run_us, 2000) AS ran,
                count(run_us) AS runs, sum(run_us) AS run_us
              FROM events WHERE {chosen} GROUP BY 1)
            SELECT * EXCEPT (ran, waits), quantile(waits, 0.95) AS wait95, quantile(ran, 0.95) AS run95 FROM counted""",
            chosen,
        )
        ended = {row["point"]: row for row in rows}
        return [
            _past_point(span, number, [row for row in (sums.get(number), ended.get(number)) if row])
            for number in sorted({*sums, *ended})
        ]

    def _rolled(self, span: Span) -> list[str]:
        """Return the whole UTC days in the range whose hourly sums count all stored events."""
        first, last = -(-span.since // DAY_MS), span.until // DAY_MS - 1
        if last < first:
            return []
        days = _day(first * DAY_MS), _day(last * DAY_MS)
        whole = HistoryFilter(f"dt BETWEEN DATE '{days[0]}' AND DATE '{days[1]}'", days=days)
        sql = (
            "SELECT CAST(dt AS STRING) AS day, {count} AS n FROM {table} WHERE {chosen} GROUP BY dt"
        )
        made = self.query(sql, whole, "rollup_hourly", count="sum(nevents)")
        there = self.query(sql, whole, count="count(*)")
        counts = {row["day"]: row["n"] for row in there}
        return sorted(row["day"] for row in made if row["n"] >= counts.get(row["day"], 0))

    def _hourly(self, span: Span, mine: HistoryFilter, days: Sequence[str]) -> list[dict[str, Any]]:
        dates = HistoryFilter(f"dt IN ({_dates(days)})", _within(span).args, (days[0], days[-1]))
        return self.query(
            """SELECT {point} AS point, sum(done) AS done, sum(dead) AS dead,
              sum(done + retry + dead + crashed + recovered) AS ends, sum(runs) AS runs, sum(run_us) AS run_us
            FROM (SELECT *, unix_millis(hour) AS at_ms FROM rollup_hourly) WHERE {chosen} GROUP BY 1""",
            dates & mine, "rollup_hourly",
        )  # fmt: skip

    def errors(self, span: Span, queues: Sequence[str] = (), job: str = "") -> list[ErrorFigures]:
        """Return groups of errors, most frequent first."""
        mine = _in_queues(queues) & _one_of("job", [job] if job else [])
        return self._errors(span, _within(span, FAILED) & mine)

    def error(self, span: Span, group: str) -> ErrorHistory:
        """Return the figures and latest runs of one group of errors."""
        mine = _within(span, FAILED) & _one_of("grouped", [group])
        errors = self._errors(span, mine)
        newest = self._runs(mine, "finished_at DESC", SLOWEST)
        return ErrorHistory(errors[0] if errors else None, tuple(newest))

    def first_seen(self, groups: Sequence[str]) -> dict[str, int]:
        """Return the time of each error group's first failure in the lake, in epoch ms."""
        if not groups:
            return {}
        rows = self.query(
            "SELECT grouped, min(at_ms) AS at_ms FROM events WHERE {chosen} GROUP BY grouped",
            _one_of("kind", FAILED) & _one_of("grouped", groups),
        )
        return {row["grouped"]: row["at_ms"] for row in rows}

    def begins_at(self) -> int:
        """Return the time of the lake's oldest event, in epoch ms; 0 if the lake is empty."""
        [row] = self.query("SELECT unix_millis(min(finished_at)) AS at_ms FROM events")
        return row["at_ms"] or 0

    def failures_between(self, span: Span, group: str, moments: Sequence[int]) -> list[int]:
        """Return how often an error occurred in each part of the range. The times in `moments` divide the range."""
        cases = " ".join(f"WHEN at_ms < {at} THEN {n}" for n, at in enumerate(moments))
        rows = self.query(
            "SELECT {part} AS part, count(*) AS failures FROM events WHERE {chosen} GROUP BY 1",
            _within(span, FAILED) & _one_of("grouped", [group]),
            part=f"CASE {cases} ELSE {len(moments)} END" if cases else "0",
        )
        counts = {row["part"]: row["failures"] for row in rows}
        return [counts.get(number, 0) for number in range(len(moments) + 1)]

    def runs(
        self, span: Span, wanted: Wanted = ANYTHING, cursor: str = "", limit: int = 100
    ) -> RunPage:
        """Return runs, latest first, starting at a cursor."""
        chosen = _within(span, ENDS) & _in_queues([wanted.queue] if wanted.queue else [])
        for name, value in wanted._replace(queue="")._asdict().items():
            column = "grouped" if name == "group" else name
            chosen &= (
                HistoryFilter(f"{column} = :is_{name}", {f"is_{name}": value})
                if value
                else EVERYTHING
            )
        at, _, rest = cursor.partition("\x1f")
        if at.isascii() and at.isdigit() and len(at) <= 15:
            place: list[str | int] = [int(at), *rest.split("\x1f", 2)]
            columns = ("at_ms", "queue", "kind", "mid")[: len(place)]
            chosen &= HistoryFilter(
                _below(columns), {f"place{n}": value for n, value in enumerate(place)}
            )
        order = "at_ms DESC, queue DESC, kind DESC, mid DESC"
        return page_of(self._runs(chosen, order, limit + 1), limit)

    def message(self, queue: str, mid: str, most: int = 200) -> list[RunRow]:
        """Return the latest events of a message in a queue, or in all queues if `queue` is ''."""
        mine = _one_of("mid", [mid]) & _in_queues([queue] if queue else [])
        return self._runs(mine, "finished_at DESC", most)

    def _runs(self, chosen: HistoryFilter, order: str, most: int) -> list[RunRow]:
        sql = "SELECT {run} FROM events WHERE {chosen} ORDER BY {order} LIMIT {most}"
        return [_run(row) for row in self.query(sql, chosen, run=_RUN, order=order, most=most)]

    def marks(self, span: Span) -> list[DeployMark]:
        """Return up to 100 deploy marks in a range, latest first."""
        rows = self.query(
            "SELECT name, unix_millis(at) AS at_ms FROM marks WHERE {chosen} ORDER BY at DESC LIMIT 100",
            _within(span, column="at"), "marks",
        )  # fmt: skip
        return [DeployMark(row["name"] or "", row["at_ms"]) for row in rows]

    def audit(
        self, before: str, wanted: Mapping[str, str], limit: int, intents: bool = False
    ) -> list[AuditEntry]:
        """Return the audit log's entries before the id `before`, latest first.

        Args:
            wanted: Required values of who, verb, queue and op; a missing or empty value matches every entry.
            intents: Also return intents of ended actions. An intent is an entry written before its action.
        """
        ms, _, number = before.partition("-")
        args = {
            "upto": min(int(ms or LATEST_MS), LATEST_MS),
            "last": min(int(number or 0), MAX_SEQ),
        }
        chosen = HistoryFilter("(ms < :upto OR (ms = :upto AND seq < :last))", args)
        for name in ("who", "verb", "op"):
            chosen &= _one_of(name, [wanted[name]] if wanted.get(name) else [])
        if queue := wanted.get("queue"):
            sql = "(queue = '*' OR instr(concat(',', queue, ','), :queue) > 0)"
            chosen &= HistoryFilter(sql, {"queue": f",{queue},"})
        if not intents:
            ended = "SELECT op FROM audit WHERE phase <> 'intent'"
            chosen &= HistoryFilter(f"(phase <> 'intent' OR op = '' OR op NOT IN ({ended}))")
        rows = self.query(
            """SELECT ms, seq, who, role, verb, queue, filter, number, op, phase, note, damaged
            FROM (SELECT *, unix_millis(at) AS ms, {seq} AS seq FROM audit)
            WHERE {chosen} ORDER BY ms DESC, seq DESC LIMIT {limit}""",
            chosen, "audit", seq=_SEQ, limit=limit,
        )  # fmt: skip
        return [AuditEntry(f"{row['ms']}-{row.pop('seq')}", row.pop("ms"), **row) for row in rows]

    def since(self, span: Span, queues: Sequence[str] = ()) -> int:
        """Return the start of `span`, because a lake's figures cover the whole range."""
        return span.since

    def query(
        self, sql: str, chosen: HistoryFilter = EVERYTHING, table: str = "events", **parts: object
    ) -> list[dict[str, Any]]:
        """Run an SQL statement on one table of the lake. Only the table `marks` includes rows of other servers.

        Raises LakeError if the statement fails or takes too long, or if the lake has only events from other servers.

        Args:
            parts: SQL for the placeholders in braces. Never pass text from users or messages.
        """
        if table == "events" and not self._has_mine:
            self._check_server()
        sql = sql.format(chosen=chosen.sql, table=table, point=_POINT, **parts)
        more = f", {sql[5:]}" if sql.startswith("WITH ") else f" {sql}"
        return self._ask(f"WITH {table} AS ({self._mine[table]}){more}", table, chosen)

    def _check_server(self) -> None:
        if not self._ask(f"{self._mine['rollup_hourly']} LIMIT 1", "events"):
            rows = self._ask("SELECT DISTINCT queue FROM stored", "events")
            others = [f"{name!r:.80}" for name in sorted({parted(row["queue"])[0] for row in rows})]
            if others:
                raise LakeError(
                    f"the lake {self.path} has no events from the server {self.server!r}, "
                    f"only from {', '.join(others)}; set --source to the name used by this server's ingest"
                )
            return
        self._has_mine = True

    def _ask(
        self, sql: str, table: str, chosen: HistoryFilter = EVERYTHING
    ) -> list[dict[str, Any]]:
        known = {**self._args, **chosen.args}
        args = {name: known[name] for name in re.findall(r":(\w+)", sql)}
        asked = {"sql": sql, "table": table, "args": args, "days": chosen.days}
        if not self._lock.acquire(timeout=self._most_s):
            raise LakeError("the lake is busy with another query; try again in a moment")
        try:
            with self._ended_on_failure() as child:
                assert child.stdin is not None
                child.stdin.write(json.dumps(asked).encode() + b"\n")
                child.stdin.flush()
                answer = json.loads(self._line(child))
        finally:
            self._lock.release()
        if "error" in answer:
            raise LakeError(f"the lake {self.path} can't be read: {answer['error']}")
        return list(answer["rows"])

    def _errors(self, span: Span, mine: HistoryFilter) -> list[ErrorFigures]:
        rows = self.query(
            """SELECT grouped, max(coalesce(nullif(error, ''), kind)) AS error, count(*) AS failures,
            count_if(kind = 'dead') AS dead, collect_set(job) AS jobs, collect_set(queue) AS queues,
            collect_set(worker) AS workers, min(at_ms) AS first_at, max(at_ms) AS last_at
            FROM events WHERE {chosen} GROUP BY grouped ORDER BY failures DESC, grouped LIMIT {most}""",
            mine, most=MAX_GROUPS,
        )  # fmt: skip
        trends: dict[str, list[int]] = {row["grouped"]: [0] * POINTS for row in rows}
        counted = self.query(
            """SELECT grouped, {point} AS point, count(*) AS failures
            FROM events WHERE {chosen} GROUP BY 1, 2 LIMIT {most}""",
            mine, most=MAX_GROUPS * POINTS,
        )  # fmt: skip
        for row in counted:
            if row["grouped"] in trends:
                trends[row["grouped"]][row["point"]] = row["failures"]
        return [
            ErrorFigures(
                row["grouped"], row["error"], row["failures"], row["dead"], _names(row["jobs"]), _names(row["queues"]),
                _names(row["workers"]), row["first_at"], row["last_at"], tuple(trends[row["grouped"]]),
            )
            for row in rows
        ]  # fmt: skip

    @contextmanager
    def _ended_on_failure(self) -> Iterator[subprocess.Popen[bytes]]:
        try:
            yield self._started()
        except (OSError, ValueError) as error:
            self._end()
            raise LakeError(f"the process that reads the lake died: {error}; try again") from error
        except BaseException:
            self._end()
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        child = self._child
        if child is not None and self._owner == os.getpid() and child.poll() is None:
            return child
        self._end()
        self._owner = os.getpid()
        words = [sys.executable, "-m", "jobq.web.lake"]
        pipe = subprocess.PIPE
        self._child = child = subprocess.Popen(words, stdin=pipe, stdout=pipe)  # nosec B603
        assert child.stdin is not None
        child.stdin.write(self._first.encode() + b"\n")
        return child

    def _line(self, child: subprocess.Popen[bytes]) -> bytes:
        """Read one line from the child. Raises LakeError if the child takes longer than `most_s`."""
        assert child.stdout is not None
        until, line = time.monotonic() + self._most_s, bytearray()
        number = child.stdout.fileno()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([number], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise LakeError(
                    f"the lake did not answer within {self._most_s:g} s; choose a shorter range"
                )
            part = os.read(number, 1 << 16)
            if not part:
                raise ValueError("it gave no answer")
            line += part
        return bytes(line)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        # In a forked process, the child belongs to the parent and continues.
        if self._owner == os.getpid():
            child.kill()
            child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # the rest of its buffer can't be sent


def _day(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def _one_of(column: str, values: Sequence[str]) -> HistoryFilter:
    args = {f"{column}{number}": value for number, value in enumerate(values)}
    return (
        HistoryFilter(f"{column} IN ({', '.join(f':{arg}' for arg in args)})", args)
        if args
        else EVERYTHING
    )


def _in_queues(names: Sequence[str]) -> HistoryFilter:
    chosen = _one_of("queue", names)
    return (
        chosen._replace(sql=f"({chosen.sql} OR {chosen.sql.replace('queue', 'part', 1)})")
        if names
        else chosen
    )


def _within(span: Span, kinds: Sequence[str] = (), column: str = "finished_at") -> HistoryFilter:
    since, until = (min(max(0, at), LATEST_MS) for at in (span.since, span.until))
    sql = f"{column} >= timestamp_millis(:since) AND {column} < timestamp_millis(:until)"
    args = {"since": since, "until": until, "step": span.step}
    days = _day(since), _day(max(since, until - 1))
    return HistoryFilter(sql, args, days) & _one_of("kind", kinds)


def _below(columns: Sequence[str], number: int = 0) -> str:
    """Return an SQL condition for rows after the cursor, with all columns in descending order."""
    column, *rest = columns
    after = f" OR ({column} = :place{number} AND {_below(rest, number + 1)})" if rest else ""
    return f"({column} < :place{number}{after})"


def _figures(row: Mapping[str, Any]) -> JobFigures:
    cpu_us = row["cpu_us"]
    return JobFigures(
        row["job"], _names(row["queues"]), row["runs"], row["done"], row["retry"], row["dead"], row["crashed"],
        row["retry"] + row["dead"] + row["crashed"],
        Percentiles(*(_ms(row[name]) for name in ("run50", "run95", "run99"))),
        Percentiles(*(row[name] for name in ("wait50", "wait95", "wait99"))),
        None if cpu_us is None else round(cpu_us / 1000, 3), row["rss_kib"] or 0, row["last_at"],
    )  # fmt: skip


def _ms(us: float | None) -> float | None:
    return None if us is None else round(us / 1000, 3)


def _names(names: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if name))[:MAX_GROUPS]


def _chart_point(span: Span, number: int, row: Mapping[str, Any] | None) -> Point:
    at = span.since + number * span.step
    return Point(at, row["done"], row["failed"], _ms(row["p95"])) if row else Point(at, 0, 0, None)


def _dates(days: Sequence[str]) -> str:
    return ", ".join(f"DATE '{day}'" for day in days)


def _past_point(span: Span, number: int, rows: Sequence[Mapping[str, Any]]) -> PastPoint:
    done, dead, ends, runs, run_us = (
        sum(row[name] or 0 for row in rows) for name in ("done", "dead", "ends", "runs", "run_us")
    )
    return PastPoint(
        span.since + number * span.step, done, max(0, ends - done - dead), dead,
        rows[-1].get("wait95"), _ms(rows[-1].get("run95")), _ms(run_us / runs) if runs else None,
    )  # fmt: skip


def _run(row: Mapping[str, Any]) -> RunRow:
    run_us, total_ms, kind = row["run_us"] or 0, row["total_ms"], row["kind"] or ""
    return RunRow(
        row["at_ms"], row["queue"], kind, row["mid"] or "", row["job"] or "", row["attempt"] or 0, run_us / 1000,
        0 if total_ms is None else max(0, total_ms - run_us // 1000), row["worker"] or "", row["error"] or "",
        row["grouped"] if kind in FAILED else "", row["trace_id"] or "", partition_in(row["part"]),
    )  # fmt: skip


# The child.


def serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answer the queries in `asked`, one JSON line each, until `asked` ends."""
    where, engine = json.loads(asked.readline()), None
    for line in asked:
        try:
            lake = Lake.open(where["path"], where["options"])
            from jobq.pipeline.lake.files import live_files  # needs pyarrow, as Lake.open says

            engine = engine or LocalEngine(lake.store)
            query = json.loads(line)
            files = live_files(lake.table(query["table"]), *query["days"])
            store, table = lake.below(query["table"]), TABLES[query["table"]]
            engine.open_files("stored", store, table, [file.path for file in files])
            answer = json.dumps({"rows": engine.rows(query["sql"], query["args"])}, default=str)
        except Exception as error:  # deltalake, DuckDB and storage raise many classes
            # The engine's own error suggests Spark, which isn't available here, so report DuckDB's error.
            cause = error.__cause__ if "duckdb" in type(error.__cause__).__module__ else error
            answer = json.dumps({"error": str(cause)[:1000]})
        if len(answer) > MAX_BYTES:
            answer = '{"error": "the answer is too large; choose a shorter range"}'
        answers.write(answer.encode() + b"\n")
        answers.flush()


def main() -> None:
    """Run the child process."""
    # Text that a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
