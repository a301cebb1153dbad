"""History from a lake: the figures of `jobq.web.history` by SQL, in a child process that can be killed.

`deltalake` alone reads the lake; neither pyarrow nor Java is needed. The child answers one query at a time and is
killed after MOST_S. It ends when its stdin does. Run as `python -m jobq.web.lake`; its first line says where the lake
is.
"""

from __future__ import annotations

import json
import os
import select
import subprocess  # nosec B404
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple

from jobq import extras
from jobq.errors import LakeError
from jobq.pipeline.lake.lake import Lake
from jobq.pipeline.lake.tables import sourced
from jobq.queue.audit_log import AuditEntry
from jobq.web.history import (
    ANYTHING,
    BOUNDS_MS,
    ENDS,
    FAILED,
    MOST_GROUPS,
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
MOST_S, MOST_BYTES = 10.0, 16 << 20
#: Of more than this, outcomes are read from hourly sums where there are any.
ROLLED_MS, DAY_MS = 172_800_000, 86_400_000
_AT = "CAST(finished_at AS BIGINT) / 1000"
#: Of an entry of the audit log: the second number of its id, which has at most 64 bits without a sign.
MOST_SEQ = 2**63 - 1
_SEQ = f"coalesce(try_cast(split_part(entry_id, '-', 2) AS BIGINT), {MOST_SEQ})"
#: The end of the year 9999, epoch ms.
LATEST_MS = 253_402_300_799_999
_GROUP = "coalesce(nullif(fingerprint, ''), nullif(error, ''), kind)"
_WAIT = (
    "CASE WHEN attempt <= 1 AND total_ms IS NOT NULL THEN greatest(total_ms - run_us / 1000, 0) END"
)
_RUN = f"{_AT} AS at, queue, kind, mid, job, attempt, run_us, total_ms, worker, error, {_GROUP} AS grouped, trace_id"
_FIELDS = {
    "queue": "queue",
    "job": "job",
    "kind": "kind",
    "mid": "mid",
    "group": _GROUP,
    "worker": "worker",
}


class DeployMark(NamedTuple):
    """A deploy, or another event that divides before from after."""

    name: str
    at: int


class LakeHistory:
    """Reads a lake. Threads may share it: a query waits for the one before it."""

    source = "lake"

    def __init__(
        self,
        path: str,
        options: Mapping[str, str] | None = None,
        most_s: float = MOST_S,
        server: str = "",
    ) -> None:
        """path, options: as of jobq.pipeline.lake.Lake.open.

        server: under which name, the source, the lake has the queues of the server; their names here are without it.
        """
        self.path, self.server = path, server
        mine = sourced(server, "")
        name = f"substr(queue, {len(mine) + 1})"
        self._mine = {
            "events": f"* EXCEPT (queue), {name} AS queue FROM stored WHERE starts_with(queue, {literal(mine)})"
            if server
            else "* FROM stored WHERE NOT starts_with(queue, '{')",
            "audit": f"* FROM stored WHERE log = {literal(sourced(server, 'audit'))}",
            "marks": "* FROM stored",
        }
        self._mine["rollup_hourly"] = self._mine["events"]
        self._has_mine = False
        self._first = json.dumps({"path": path, "options": dict(options or {})})
        self._most_s = most_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def close(self) -> None:
        """End the child. The next query starts another."""
        with self._lock:
            self._end()

    def jobs(self, span: Span, queues: Sequence[str] = ()) -> list[JobFigures]:
        """Figures of each job, those with the most runs first."""
        rows = self.query(
            f"""SELECT job, array_agg(DISTINCT queue) AS queues, {_FIGURES}
            FROM events WHERE {_within(span)} AND kind IN ({_list(ENDS)}) AND job <> '' {_in("queue", queues)}
            GROUP BY job ORDER BY runs DESC, job LIMIT {MOST_GROUPS}"""  # noqa: S608  # nosec B608
        )
        return [_figures(row) for row in rows]

    def job(self, span: Span, job: str) -> JobHistory:
        """Everything of one job."""
        mine = f"{_within(span)} AND kind IN ({_list(ENDS)}) AND job = {literal(job)}"
        figures = self.query(
            f"SELECT job, array_agg(DISTINCT queue) AS queues, {_FIGURES} FROM events WHERE {mine} GROUP BY job"  # noqa: S608  # nosec B608
        )
        points = self.query(
            f"""SELECT {_point(span)} AS point, count(*) FILTER (WHERE kind = 'done') AS done,
            count(*) FILTER (WHERE kind <> 'done') AS failed, approx_percentile_cont(run_us, 0.95) AS p95
            FROM events WHERE {mine} GROUP BY 1"""  # noqa: S608  # nosec B608
        )
        cases = " ".join(
            f"WHEN run_us <= {1000 * most} THEN {n}" for n, most in enumerate(BOUNDS_MS)
        )
        buckets = self.query(
            f"""SELECT CASE {cases} ELSE {len(BOUNDS_MS)} END AS bucket, count(*) AS runs
            FROM events WHERE {mine} AND run_us > 0 GROUP BY 1"""  # noqa: S608  # nosec B608
        )
        slowest = self.query(
            f"SELECT {_RUN} FROM events WHERE {mine} ORDER BY run_us DESC NULLS LAST LIMIT {SLOWEST}"  # noqa: S608  # nosec B608
        )
        by_bucket = {row["bucket"]: row["runs"] for row in buckets}
        by_point = {row["point"]: row for row in points}
        return JobHistory(
            _figures(figures[0]) if figures else None,
            tuple(by_bucket.get(number, 0) for number in range(len(BOUNDS_MS) + 1)),
            tuple(_chart_point(span, number, by_point.get(number)) for number in range(POINTS)),
            tuple(map(_run, slowest)),
        )

    def outcomes(self, span: Span, queue: str = "") -> list[PastPoint]:
        """How the attempts of a queue ended, or of all queues, in equal parts of a range; only parts with attempts.

        Of more than ROLLED_MS, days whose hourly sums count all of their events are read from these sums.
        """
        mine = _in("queue", [queue] if queue else [])
        days = self._rolled(span) if span.until - span.since > ROLLED_MS else []
        sums = {row["point"]: row for row in self._hourly(span, mine, days)} if days else {}
        others = f" AND dt NOT IN ({_dates(days)})" if days else ""
        rows = self.query(
            f"""SELECT {_point(span)} AS point, count(*) FILTER (WHERE kind = 'done') AS done,
            count(*) FILTER (WHERE kind = 'dead') AS dead, count(*) AS ends,
            approx_percentile_cont({_WAIT}, 0.95) AS wait95, approx_percentile_cont(run_us, 0.95) AS run95,
            count(run_us) AS runs, sum(run_us) AS run_us
            FROM events WHERE {_within(span)} AND kind IN ({_list(ENDS)}) {mine}{others} GROUP BY 1"""  # noqa: S608  # nosec B608
        )
        found = {row["point"]: row for row in rows}
        return [
            _past_point(span, number, [one for one in (sums.get(number), found.get(number)) if one])
            for number in sorted({*sums, *found})
        ]

    def _rolled(self, span: Span) -> list[str]:
        """The whole UTC days of a range whose hourly sums count as many events as there are, or were."""
        first, last = -(-span.since // DAY_MS), span.until // DAY_MS - 1
        if last < first:
            return []
        days = [_moment(day * DAY_MS)[11:21] for day in (first, last)]
        within = f"dt >= DATE '{days[0]}' AND dt <= DATE '{days[1]}'"
        made = self.query(
            f"SELECT CAST(dt AS VARCHAR) AS day, sum(nevents) AS n FROM rollup_hourly WHERE {within} GROUP BY dt",  # noqa: S608  # nosec B608
            "rollup_hourly",
        )
        there = self.query(
            f"SELECT CAST(dt AS VARCHAR) AS day, count(*) AS n FROM events WHERE {within} GROUP BY dt"  # noqa: S608  # nosec B608
        )
        counts = {row["day"]: row["n"] for row in there}
        return sorted(row["day"] for row in made if row["n"] >= counts.get(row["day"], 0))

    def _hourly(self, span: Span, mine: str, days: Sequence[str]) -> list[dict[str, Any]]:
        ends = " + ".join(f"sum({kind})" for kind in ENDS)
        return self.query(
            f"""SELECT least({POINTS - 1}, (CAST(hour AS BIGINT) / 1000 - {span.since}) / {span.step}) AS point,
            sum(done) AS done, sum(dead) AS dead, {ends} AS ends, sum(runs) AS runs, sum(run_us) AS run_us
            FROM rollup_hourly WHERE dt IN ({_dates(days)}) {mine} GROUP BY 1""",  # noqa: S608  # nosec B608
            "rollup_hourly",
        )

    def errors(self, span: Span, queues: Sequence[str] = (), job: str = "") -> list[ErrorFigures]:
        """Groups of errors, those with the most first."""
        more = f" AND job = {literal(job)}" if job else ""
        return self._errors(span, f"{_in('queue', queues)}{more}")

    def error(self, span: Span, group: str) -> ErrorHistory:
        """One group of errors."""
        mine = f" AND {_GROUP} = {literal(group)}"
        found = self._errors(span, mine)
        newest = self.query(
            f"""SELECT {_RUN} FROM events WHERE {_within(span)} AND kind IN ({_list(FAILED)}) {mine}
            ORDER BY finished_at DESC LIMIT {SLOWEST}"""  # noqa: S608  # nosec B608
        )
        return ErrorHistory(found[0] if found else None, tuple(map(_run, newest)))

    def first_seen(self, groups: Sequence[str]) -> dict[str, int]:
        """When each group of errors was first seen, of all days that the lake has; epoch ms."""
        if not groups:
            return {}
        rows = self.query(
            f"""SELECT {_GROUP} AS grouped, min({_AT}) AS at FROM events
            WHERE kind IN ({_list(FAILED)}) AND {_GROUP} IN ({_list(groups)}) GROUP BY 1"""  # noqa: S608  # nosec B608
        )
        return {row["grouped"]: row["at"] for row in rows}

    def begins_at(self) -> int:
        """Return when the oldest event of the lake happened, epoch ms; 0 for an empty one."""
        rows = self.query(f"SELECT min({_AT}) AS at FROM events")  # noqa: S608  # nosec B608
        return (rows[0]["at"] or 0) if rows else 0

    def failures_between(self, span: Span, group: str, moments: Sequence[int]) -> list[int]:
        """How often an error came before the first of these ascending moments, then from each to the next one."""
        cases = " ".join(f"WHEN {_AT} < {at} THEN {n}" for n, at in enumerate(moments))
        part = f"CASE {cases} ELSE {len(moments)} END" if cases else "0"
        rows = self.query(
            f"""SELECT {part} AS part, count(*) AS failures FROM events
            WHERE {_within(span)} AND kind IN ({_list(FAILED)}) AND {_GROUP} = {literal(group)} GROUP BY 1"""  # noqa: S608  # nosec B608
        )
        counts = {row["part"]: row["failures"] for row in rows}
        return [counts.get(number, 0) for number in range(len(moments) + 1)]

    def runs(
        self, span: Span, wanted: Wanted = ANYTHING, cursor: str = "", limit: int = 100
    ) -> RunPage:
        """Newest runs first, from a cursor on."""
        asked = wanted._asdict().items()
        more = "".join(f" AND {_FIELDS[name]} = {literal(value)}" for name, value in asked if value)
        at, _, rest = cursor.partition("\x1f")
        if at.isascii() and at.isdigit() and len(at) <= 15:
            place: list[str | int] = [int(at), *rest.split("\x1f", 2)]
            columns = (_AT, "queue", "kind", "mid")
            more += f" AND {_below(list(zip(columns, place)))}"
        rows = self.query(
            f"""SELECT {_RUN} FROM events WHERE {_within(span)} AND kind IN ({_list(ENDS)}){more}
            ORDER BY {_AT} DESC, queue DESC, kind DESC, mid DESC LIMIT {limit + 1}"""  # noqa: S608  # nosec B608
        )
        return page_of([_run(row) for row in rows], limit)

    def message(self, queue: str, mid: str, most: int = 200) -> list[RunRow]:
        """Return the newest events of a message in a queue; of all queues if that is ''."""
        more = f" AND queue = {literal(queue)}" if queue else ""
        rows = self.query(
            f"""SELECT {_RUN} FROM events WHERE mid = {literal(mid)}{more}
            ORDER BY finished_at DESC LIMIT {most}"""  # noqa: S608  # nosec B608
        )
        return [_run(row) for row in rows]

    def marks(self, span: Span) -> list[DeployMark]:
        """Return the marks in a span, newest first."""
        rows = self.query(
            f"""SELECT name, CAST(at AS BIGINT) / 1000 AS at FROM marks WHERE at >= {_moment(span.since)}
            AND at < {_moment(span.until)} ORDER BY at DESC LIMIT 100""",  # noqa: S608  # nosec B608
            "marks",
        )
        return [DeployMark(row["name"] or "", row["at"]) for row in rows]

    def audit(
        self, before: str, wanted: Mapping[str, str], limit: int, intents: bool = False
    ) -> list[AuditEntry]:
        """Return entries of the audit log before the one with this id, newest first.

        wanted: what its who, verb, queue and op have to be; anything if it isn't there or ''. intents: also those of
        operations that ended.
        """
        ms, _, number = before.partition("-")
        at, last = min(int(ms or LATEST_MS), LATEST_MS), int(number or 0)
        found = [
            f"{name} = {literal(wanted[name])}"
            for name in ("who", "verb", "op")
            if wanted.get(name)
        ]
        if queue := wanted.get("queue"):
            found.append(
                f"(queue = '*' OR strpos(',' || queue || ',', {literal(f',{queue},')}) > 0)"
            )
        if not intents:
            ended = "SELECT op FROM audit WHERE phase <> 'intent'"
            found.append(f"(phase <> 'intent' OR op = '' OR op NOT IN ({ended}))")
        rows = self.query(
            f"""SELECT CAST(at AS BIGINT) / 1000 AS ms, {_SEQ} AS seq, who, role, verb, queue, filter, number,
            op, phase, note, damaged FROM audit
            WHERE (at < {_moment(at)} OR (at = {_moment(at)} AND {_SEQ} < {min(last, MOST_SEQ)}))
            {"".join(f" AND {one}" for one in found)}
            ORDER BY at DESC, seq DESC LIMIT {limit}""",  # noqa: S608  # nosec B608
            "audit",
        )
        return [AuditEntry(f"{row['ms']}-{row.pop('seq')}", row.pop("ms"), **row) for row in rows]

    def since(self, span: Span, queues: Sequence[str] = ()) -> int:
        """From when on the figures are complete: always."""
        return span.since

    def query(self, sql: str, table: str = "events") -> list[dict[str, Any]]:
        """Return the rows of a statement about one table: the rows of this server, of marks all.

        LakeError if it fails or takes too long, or if the lake has events, but only of other servers.
        """
        if table == "events" and not self._has_mine:
            self._check_server()
        return self._ask(f"WITH {table} AS (SELECT {self._mine[table]}) {sql}", table)

    def _check_server(self) -> None:
        if not self._ask(f"SELECT {self._mine['events']} LIMIT 1", "events"):
            owner = "CASE WHEN starts_with(queue, '{') THEN split_part(substr(queue, 2), '}', 1) ELSE '' END"
            rows = self._ask(f"SELECT DISTINCT {owner} AS server FROM stored ORDER BY 1", "events")  # noqa: S608  # nosec B608
            others = [f"{row['server']!r:.80}" for row in rows]
            if others:
                raise LakeError(
                    f"the lake {self.path} has no events of the server {self.server!r}, but of {', '.join(others)}; "
                    "--source names this server as its ingest does"
                )
            return
        self._has_mine = True

    def _ask(self, sql: str, table: str) -> list[dict[str, Any]]:
        if not self._lock.acquire(timeout=self._most_s):
            raise LakeError("the lake answers another query; try again in a moment")
        try:
            with self._ended_on_failure() as child:
                assert child.stdin is not None
                child.stdin.write(json.dumps({"sql": sql, "table": table}).encode() + b"\n")
                child.stdin.flush()
                answer = json.loads(self._line(child))
        finally:
            self._lock.release()
        if "error" in answer:
            raise LakeError(f"the lake {self.path} can't be read: {answer['error']}")
        columns = answer["columns"]
        return [dict(zip(columns, row, strict=True)) for row in answer["rows"]]

    def _errors(self, span: Span, more: str) -> list[ErrorFigures]:
        mine = f"{_within(span)} AND kind IN ({_list(FAILED)}) {more}"
        rows = self.query(
            f"""SELECT {_GROUP} AS grouped, max(coalesce(nullif(error, ''), kind)) AS error, count(*) AS failures,
            count(*) FILTER (WHERE kind = 'dead') AS dead, array_agg(DISTINCT job) AS jobs,
            array_agg(DISTINCT queue) AS queues, array_agg(DISTINCT worker) AS workers,
            min({_AT}) AS first_at, max({_AT}) AS last_at
            FROM events WHERE {mine} GROUP BY 1 ORDER BY failures DESC, grouped LIMIT {MOST_GROUPS}"""  # noqa: S608  # nosec B608
        )
        trends: dict[str, list[int]] = {row["grouped"]: [0] * POINTS for row in rows}
        counted = self.query(
            f"""SELECT {_GROUP} AS grouped, {_point(span)} AS point, count(*) AS failures
            FROM events WHERE {mine} GROUP BY 1, 2 LIMIT {MOST_GROUPS * POINTS}"""  # noqa: S608  # nosec B608
        )
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
        """Return one line of the child, which has `most_s` for it."""
        assert child.stdout is not None
        until, found = time.monotonic() + self._most_s, bytearray()
        number = child.stdout.fileno()
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([number], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise LakeError(
                    f"the lake did not answer within {self._most_s:g} s; choose a shorter range of time"
                )
            part = os.read(number, 1 << 16)
            if not part:
                raise ValueError("it gave no answer")
            found += part
        return bytes(found)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        # A child of the process from which this one was forked goes on.
        if self._owner == os.getpid():
            child.kill()
            child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # what was left in its buffer can't be sent


_FIGURES = f"""count(*) AS runs, count(*) FILTER (WHERE kind = 'done') AS done,
    count(*) FILTER (WHERE kind = 'retry') AS retry, count(*) FILTER (WHERE kind = 'dead') AS dead,
    count(*) FILTER (WHERE kind IN ('crashed', 'recovered')) AS crashed,
    approx_percentile_cont(run_us, 0.5) AS run50, approx_percentile_cont(run_us, 0.95) AS run95,
    approx_percentile_cont(run_us, 0.99) AS run99, approx_percentile_cont({_WAIT}, 0.5) AS wait50,
    approx_percentile_cont({_WAIT}, 0.95) AS wait95, approx_percentile_cont({_WAIT}, 0.99) AS wait99,
    avg(CASE WHEN run_us > 0 THEN cpu_us END) AS cpu_us, max(rss_kib) AS rss_kib, max({_AT}) AS last_at"""


def literal(text: str) -> str:
    """Write text as SQL: quotes are doubled, nothing else has a meaning."""
    return "'" + text.replace("'", "''") + "'"


def _list(texts: Sequence[str]) -> str:
    return ", ".join(map(literal, texts))


def _in(column: str, names: Sequence[str]) -> str:
    return f" AND {column} IN ({_list(names)})" if names else ""


def _moment(at_ms: int) -> str:
    at = datetime.fromtimestamp(min(max(0, at_ms), LATEST_MS) / 1000, UTC)
    return f"TIMESTAMP '{at.isoformat(sep=' ', timespec='milliseconds')}'"


def _within(span: Span) -> str:
    days = [_moment(at)[11:21] for at in (span.since, max(span.since, span.until - 1))]
    return (
        f"dt >= DATE '{days[0]}' AND dt <= DATE '{days[1]}' AND finished_at >= {_moment(span.since)} "
        f"AND finished_at < {_moment(span.until)}"
    )


def _point(span: Span) -> str:
    return f"least({POINTS - 1}, ({_AT} - {span.since}) / {span.step})"


def _below(place: Sequence[tuple[str, str | int]]) -> str:
    """SQL for a row that comes after this place in descending order."""
    (column, value), *rest = place
    written = literal(value) if isinstance(value, str) else str(value)
    if not rest:
        return f"{column} < {written}"
    return f"({column} < {written} OR ({column} = {written} AND {_below(rest)}))"


def _figures(row: Mapping[str, Any]) -> JobFigures:
    cpu_us = row["cpu_us"]
    return JobFigures(
        row["job"], _names(row["queues"]), row["runs"], row["done"], row["retry"], row["dead"], row["crashed"],
        row["retry"] + row["dead"] + row["crashed"],
        Percentiles(*(_ms(row[name]) for name in ("run50", "run95", "run99"))),
        Percentiles(*(_whole(row[name]) for name in ("wait50", "wait95", "wait99"))),
        None if cpu_us is None else round(cpu_us / 1000, 3), row["rss_kib"] or 0, row["last_at"],
    )  # fmt: skip


def _ms(us: float | None) -> float | None:
    return None if us is None else round(us / 1000, 3)


def _whole(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 3)


def _names(found: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(sorted(name for name in found if name))[:MOST_GROUPS]


def _chart_point(span: Span, number: int, row: Mapping[str, Any] | None) -> Point:
    at = span.since + number * span.step
    return Point(at, row["done"], row["failed"], _ms(row["p95"])) if row else Point(at, 0, 0, None)


def _dates(days: Sequence[str]) -> str:
    return ", ".join(f"DATE '{day}'" for day in days)


def _past_point(span: Span, number: int, rows: Sequence[Mapping[str, Any]]) -> PastPoint:
    """One point, of what hourly sums and events say."""
    done, dead, ends, runs, run_us = (
        sum(row[name] or 0 for row in rows) for name in ("done", "dead", "ends", "runs", "run_us")
    )
    return PastPoint(
        span.since + number * span.step, done, max(0, ends - done - dead), dead,
        _whole(rows[-1].get("wait95")), _ms(rows[-1].get("run95")), _ms(run_us / runs) if runs else None,
    )  # fmt: skip


def _run(row: Mapping[str, Any]) -> RunRow:
    run_us, total_ms, kind = row["run_us"] or 0, row["total_ms"], row["kind"] or ""
    return RunRow(
        row["at"], row["queue"], kind, row["mid"] or "", row["job"] or "", row["attempt"] or 0, run_us / 1000,
        0 if total_ms is None else max(0, total_ms - run_us // 1000), row["worker"] or "", row["error"] or "",
        row["grouped"] if kind in FAILED else "", row["trace_id"] or "",
    )  # fmt: skip


# The child.


def serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Answer queries, a JSON line each, until `asked` ends."""
    where = json.loads(asked.readline())
    for line in asked:
        query = json.loads(line)
        try:
            answer = json.dumps(_answer(where, query), default=str)
        except ImportError:
            answer = json.dumps({"error": f"deltalake is missing; {extras.install('web-lake')}"})
        except Exception as error:  # deltalake and storage raise many classes
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]})
        if len(answer) > MOST_BYTES:
            answer = json.dumps(
                {"error": "the answer is too large; choose a shorter range of time"}
            )
        answers.write(answer.encode() + b"\n")
        answers.flush()


def _answer(where: Mapping[str, Any], query: Mapping[str, str]) -> dict[str, Any]:
    from deltalake import QueryBuilder

    name = query["table"]
    table = Lake.open(where["path"], where["options"]).table(name)
    if table is None:  # nothing was written to it yet
        return {"columns": [], "rows": []}
    found: Any = QueryBuilder().register("stored", table).execute(query["sql"]).read_all()
    columns = [
        [value.as_py() for chunk in column.chunks for value in chunk] for column in found.columns
    ]
    return {"columns": found.column_names, "rows": list(zip(*columns, strict=True))}


def main() -> None:
    """Run the child."""
    # Whatever a library prints must not stand among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
